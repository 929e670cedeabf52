"""One run as columns, in memory or on disk, whatever state its folder is in."""
