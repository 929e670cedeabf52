"""Routing by weight compared with a shared queue."""
