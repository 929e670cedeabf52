"""A service seen from outside: its process by the kernel's counters, its requests by their client, both in one ledger."""
