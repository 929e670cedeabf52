"""One batch through a model: user errors, nested tensors, buffers, counters. Nothing here knows of settings."""
