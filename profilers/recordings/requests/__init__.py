"""Recordings of requests: logs, and results of load generators."""
