"""Replays recorded or synthetic allocation traffic through models of allocators."""
