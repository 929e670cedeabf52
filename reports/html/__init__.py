"""Self-contained pages."""
