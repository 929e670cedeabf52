"""Runs kept over time, and their trends."""
