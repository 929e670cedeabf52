"""CPU cores, and what else runs on them."""
