"""A run in chunks (one if it fits into memory): the ledger of each, and the totals of a diagnosis."""
