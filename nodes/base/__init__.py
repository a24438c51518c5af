"""What all nodes share: base classes and inputs, reports, problems while typing, routes."""
