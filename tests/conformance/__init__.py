"""Answers of programs to the case files, asked by tests/cases/conformance.py, and the page about them."""
