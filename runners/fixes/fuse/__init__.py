"""``fuse.*``: other kernels for the model: compiled, captured, converted."""
