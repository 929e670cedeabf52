"""``batch.*``: how large batches get, how long they stay open, and who shares one."""

from latfix.runners.fixes.batch import adaptive, bucket, continuous, size, window

__all__ = ["adaptive", "bucket", "continuous", "size", "window"]
