"""Runs recorded over time, and their trends."""
