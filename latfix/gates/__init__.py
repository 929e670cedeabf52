"""Conditions on a run that become an exit code."""
