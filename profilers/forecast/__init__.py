"""Latency of the recorded requests under other settings, simulated."""
