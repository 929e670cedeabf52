"""``cache.embeddings``: the rows of embedding tables that most requests look up are read again while idle."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, on_host
from latfix.runners.host.cpu_topology import allowed_cores, last_level_cache_bytes

#: The share of the last-level cache that the rows may take: activations and weights need the rest.
_OF_CACHE = 0.5
#: Where the system does not say how large the cache is.
_CACHE = 16 << 20
#: How often an idle worker reads some of them, where it does nothing else yet, in milliseconds.
_PERIOD_MS = 20.0
#: Lookups that the most used rows must serve: otherwise any row is as likely as any other.
_SHARE = 0.2


def _cache_bytes() -> int:
    return last_level_cache_bytes(next(iter(allowed_cores()), 0)) or _CACHE


def _large_tables(context: Context) -> str:
    found = context.record.meta.embeddings
    if not found.tables:
        return "the model has no embedding tables"
    size, cache = found.bytes, _cache_bytes()
    if size <= _OF_CACHE * cache:
        return f"the tables ({size / 2**20:.1f} MiB) fit into the cache ({cache / 2**20:.0f} MiB) whole"
    return ""


def _sets(context: Context) -> Change:
    found = context.record.meta.embeddings
    row = max(found.bytes // max(found.rows, 1), 1)
    change: Change = {"hot_rows": max(int(_OF_CACHE * _cache_bytes()) // row, 1)}
    return change if context.settings.keep_warm_ms else {**change, "keep_warm_ms": _PERIOD_MS}


def _verify(applied: Applied) -> Verified:
    found, residence = applied.record.meta.embeddings, applied.record.meta.residence
    rows, share, touched = found.hot_rows, found.hot_share, 0 if residence is None else residence.rows
    said = (
        f"{rows} rows, which served {share:.0%} of {found.lookups} lookups, of {found.rows} in "
        f"{found.tables} table(s); {touched} reads of them beside requests"
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
    needs=(
        at_default("hot_rows", "{} rows are kept warm already"),
        on_host(),
        at_default("backend", "{} has tables of its own"),
        _large_tables,
    ),
    sets=_sets,
    verify=_verify,
)
