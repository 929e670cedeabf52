"""``batch.*``: size of batches, how long they stay open, and which requests share one."""

from latfix.runners.fixes.batch import adaptive, bucket, continuous, size, window

__all__ = ["adaptive", "bucket", "continuous", "size", "window"]
