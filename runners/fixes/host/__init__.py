"""Fixes of threads, cores, priorities and routing."""
