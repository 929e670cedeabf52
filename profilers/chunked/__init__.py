"""A run in chunks, one where it fits into memory: the ledger of each, and what a diagnosis needs of all."""
