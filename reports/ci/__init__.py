"""Summaries for CI servers and pull requests."""
