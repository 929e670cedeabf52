"""Observes a run while it happens: stamps, thread counters, samplers."""
