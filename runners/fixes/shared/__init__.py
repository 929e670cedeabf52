"""Shared by fixes: preconditions, and evidence of an effect in records and services."""
