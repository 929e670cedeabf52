"""Queues, batches and shared cores behind arrivals and ends of a log, if these confirm them."""
