"""Recordings of spans: the critical path of each request through its services, and which of them made it slow."""
