"""Commands that read records and results."""
