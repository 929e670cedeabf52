"""``cache.embeddings``: the rows of embedding tables that most requests look up are read again while idle."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.host.cpu_topology import allowed_cores, last_level_cache_bytes

#: The share of the last-level cache that the rows may take: activations and weights need the rest.
_OF_CACHE = 0.5
#: Where the system does not tell how large the cache is.
_CACHE = 16 << 20
#: How often an idle worker reads some of them, where it does nothing else yet, in milliseconds.
_PERIOD_MS = 20.0
#: Lookups that the most used rows must serve: otherwise any row is as likely as any other.
_SHARE = 0.2


def _cache_bytes() -> int:
    return last_level_cache_bytes(next(iter(allowed_cores()), 0)) or _CACHE


def _obstacle(context: Context) -> str:
    settings = context.settings
    if settings.hot_rows:
        return f"{settings.hot_rows} rows are kept warm already"
    if context.record.meta.get("device", "cpu") != "cpu":
        return "the model runs on a GPU"
    if settings.backend != "torch":
        return f"{settings.backend} has tables of its own"
    found = context.record.meta.get("embeddings", {})
    if not found.get("tables"):
        return "the model has no embedding tables"
    size, cache = int(found["bytes"]), _cache_bytes()
    if size <= _OF_CACHE * cache:
        return f"the tables ({size / 2**20:.1f} MiB) fit into the cache ({cache / 2**20:.0f} MiB) whole"
    return ""


def _change(context: Context) -> dict[str, Any]:
    found = context.record.meta.get("embeddings", {})
    row = max(int(found.get("bytes", 0)) // max(int(found.get("rows", 0)), 1), 1)
    change: dict[str, Any] = {"hot_rows": max(int(_OF_CACHE * _cache_bytes()) // row, 1)}
    if not context.settings.keep_warm_ms:
        change["keep_warm_ms"] = _PERIOD_MS
    return change


def _verify(applied: Applied) -> Verified:
    meta = applied.record.meta
    found, touched = meta.get("embeddings", {}), int(meta.get("residence", {}).get("rows", 0))
    rows, share, lookups = int(found.get("hot_rows", 0)), float(found.get("hot_share", 0.0)), found.get("lookups", 0)
    said = (
        f"{rows} rows, which served {share:.0%} of {lookups} lookups, of {found.get('rows', 0)} in "
        f"{found.get('tables', 0)} table(s); {touched} reads of them beside requests"
    )
    if rows and share < _SHARE:
        return Verified(False, f"no rows are much used: {said}")
    return Verified(rows > 0 and touched >= rows, said)


FIX = Fix(
    id="cache.embeddings",
    title="keep the most used rows of embedding tables in the cache",
    treats=("host.slowdown", "cold.start"),
    relief=0.2,
    gentle=True,
    risk="an idle worker reads memory that others on the machine may want the bandwidth for",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
