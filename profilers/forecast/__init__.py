"""Predicted latency of the recorded requests under other settings."""
