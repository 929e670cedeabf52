"""``schedule.*``: order in which requests leave the queue."""
