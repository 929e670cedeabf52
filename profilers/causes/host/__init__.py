"""Cores, and who else has them."""
