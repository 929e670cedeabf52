"""Runs in the formats of other tools: one module per format, written in pieces."""
