"""One run as columns, in memory or on disk, complete or not."""
