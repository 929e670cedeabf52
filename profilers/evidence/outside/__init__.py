"""A service behind an address: its queue, standstills and locks, inferred from its client and the kernel."""
