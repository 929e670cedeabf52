"""Recordings of a device: steps, and what each spent its time on."""
