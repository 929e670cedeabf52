"""A laboratory for allocators: recorded or made-up allocation traffic, replayed through models of policies."""
