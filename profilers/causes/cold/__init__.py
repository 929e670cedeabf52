"""First uses."""
