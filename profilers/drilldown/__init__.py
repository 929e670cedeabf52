"""One request explained: timeline, whom it waited behind, its ledger."""
