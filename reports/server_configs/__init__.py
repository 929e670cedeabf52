"""A plan as the configuration of other inference servers."""
