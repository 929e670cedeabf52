"""The interpreter."""
