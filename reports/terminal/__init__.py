"""Rich renderables, one module a command."""
