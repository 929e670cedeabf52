"""Batch size, window, padding and who shares a batch."""
