"""How much load a service bears, measured and by queueing theory."""
