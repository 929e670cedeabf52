"""A schedule of requests in memory: its shape, its synthesis and its transformations."""
