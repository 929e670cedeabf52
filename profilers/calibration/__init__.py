"""Costs of a page fault, of unmapping and of driver calls on this machine."""
