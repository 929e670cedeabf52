"""What fixes share: preconditions, and what records and services show of an effect."""
