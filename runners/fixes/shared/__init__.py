"""What fixes share: preconditions, what records and services show of an effect, and a plan of them applied."""
