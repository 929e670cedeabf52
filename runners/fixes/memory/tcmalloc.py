"""``memory.tcmalloc``: tcmalloc instead of the C library's allocator, configured to keep freed memory."""

from __future__ import annotations

from latfix.runners.fixes.memory.preloaded_allocators import preload_fix
from latfix.runners.host.malloc_libraries import TCMALLOC

FIX = preload_fix(TCMALLOC)
