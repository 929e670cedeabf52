"""Recordings of requests: logs, load generators' results, spans."""
