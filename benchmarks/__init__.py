"""Measurements of latfix itself. A package, so that nobody else's of this name is imported in its place."""
