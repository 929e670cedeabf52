"""A service behind an address: its queue, standstills and locks, as far as its client and the kernel tell."""
