"""The entry point: a record in, its diagnosis out, in memory or chunk by chunk."""
