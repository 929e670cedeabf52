"""Serving on a GPU: streams and events behind a narrow interface, staging, timelines, graphs, profiles."""
