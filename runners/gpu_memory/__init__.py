"""torch's allocator on the device: settings, limits, history, peaks."""
