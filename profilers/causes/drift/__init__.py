"""Slower with age, and what grew alongside."""
