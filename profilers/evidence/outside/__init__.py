"""A service behind an address: queue, standstills and locks from its client and the kernel, and its reports."""
