"""``memory.tcmalloc``: tcmalloc instead of the C library's allocator, told to keep freed memory."""

from __future__ import annotations

from typing import Any

from latfix.runners.allocators import TCMALLOC
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.memory_allocator import TREATS
from latfix.runners.fixes.preload import preload_change, preload_obstacle, preload_took_effect


def _obstacle(context: Context) -> str:
    return preload_obstacle(TCMALLOC, context)


def _change(context: Context) -> dict[str, Any]:
    return preload_change(TCMALLOC, context)


def _verify(applied: Applied) -> Verified:
    return preload_took_effect(TCMALLOC, applied)


FIX = Fix(
    id="memory.tcmalloc",
    title="preload tcmalloc and let it keep freed memory",
    treats=TREATS,
    relief=0.6,
    gentle=True,
    risk="resident memory grows to its peak and stays there",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
