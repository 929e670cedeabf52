"""A service that latfix does not run: its process by the kernel's counters, what it tells of itself, its figures."""
