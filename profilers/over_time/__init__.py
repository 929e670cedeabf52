"""Figures over the time of a run: windows, active intervals, level shifts."""
