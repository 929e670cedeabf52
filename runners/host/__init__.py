"""This machine and process: cores, priority, allocators, environment."""
