"""Real hosts for the session: those of tests/hosts."""

from ..hosts.conftest import host, models, pytest_generate_tests

__all__ = ["host", "models", "pytest_generate_tests"]
