"""For machines and pull requests."""
