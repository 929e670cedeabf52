"""Waits that arrivals make."""
