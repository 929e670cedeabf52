"""Conditions on a run that decide an exit code."""
