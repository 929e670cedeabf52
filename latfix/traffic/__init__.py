"""A schedule of requests in memory: what it is, how it is made and changed."""
