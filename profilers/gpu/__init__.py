"""Readings of a GPU, its driver and torch's allocator during a run."""
