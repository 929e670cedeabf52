"""The GPU: copies, launches, clocks, neighbors."""
