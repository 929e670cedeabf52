"""``memory.tcmalloc``: tcmalloc instead of the C library's allocator, told to keep freed memory."""

from __future__ import annotations

from latfix.runners.allocators import TCMALLOC
from latfix.runners.fixes.preload import preload_fix

FIX = preload_fix(TCMALLOC)
