"""Fixes that reduce the precision."""
