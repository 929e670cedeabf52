"""Measurements of latfix itself. A package, so that no other package of this name is imported instead."""
