"""What a GPU, its driver and torch's allocator say during a run."""
