"""From units of work to a Diagnosis: the ledger, the tail, the naming rule, the verdict."""
