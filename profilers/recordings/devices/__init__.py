"""Recordings of a device: steps, and how each spent its time."""
