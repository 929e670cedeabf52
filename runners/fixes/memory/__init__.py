"""``memory.*``: allocators, pages, and memory that is kept or reserved."""

from latfix.runners.fixes.memory import (
    allocator,
    device_allocator,
    huge_pages,
    jemalloc,
    limit,
    page_prefault,
    pool,
    tcmalloc,
)

__all__ = ["allocator", "device_allocator", "huge_pages", "jemalloc", "limit", "page_prefault", "pool", "tcmalloc"]
