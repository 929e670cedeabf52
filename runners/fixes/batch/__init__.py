"""``batch.*``: size of batches, how long they stay open, and which requests share one."""
