"""One request explained: its timeline, the work it waited behind, its ledger."""
