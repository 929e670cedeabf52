"""torch's device allocator: settings, limits, history, peaks."""
