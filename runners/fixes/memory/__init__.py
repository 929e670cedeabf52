"""``memory.*``: allocators, pages, and memory that is kept or reserved."""
