"""load_runner: the measured engine in a user's own service."""
