"""Fixes that fuse operators or hand the model to another backend."""
