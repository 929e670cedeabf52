"""Rich renderables, one module per command."""
