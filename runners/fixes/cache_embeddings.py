"""``cache.embeddings``: idle workers read the most used rows of embedding tables, to keep them in the cache."""

from __future__ import annotations

from latfix.formatting import counted, percent
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, on_its_device
from latfix.runners.host.cpu_topology import allowed_cores, last_level_cache_bytes

#: Share of the last-level cache for the rows: activations and weights need the remainder.
_OF_CACHE = 0.5
#: Assumed size if the system does not report the size of the cache.
_CACHE = 16 << 20
#: How often an idle worker reads some of them, in milliseconds, unless keep_warm_ms is set.
_PERIOD_MS = 20.0
#: Minimum share of lookups that the most used rows serve: otherwise all rows are about equally likely.
_SHARE = 0.2


def _cache_bytes() -> int:
    return last_level_cache_bytes(next(iter(allowed_cores()), 0)) or _CACHE


def _large_tables(context: Context) -> str:
    found = context.record.meta.embeddings
    if not found.tables:
        return "the model has no embedding tables"
    size, cache = found.bytes, _cache_bytes()
    if size <= _OF_CACHE * cache:
        return f"the whole tables ({size / 2**20:.1f} MiB) fit into the cache ({cache / 2**20:.0f} MiB)"
    return ""


def _sets(context: Context) -> Change:
    found = context.record.meta.embeddings
    row = max(found.bytes // max(found.rows, 1), 1)
    change: Change = {"hot_rows": max(int(_OF_CACHE * _cache_bytes()) // row, 1)}
    return change if context.settings.keep_warm_ms else {**change, "keep_warm_ms": _PERIOD_MS}


def _verify(applied: Applied) -> Verified:
    found, residence = applied.record.meta.embeddings, applied.record.meta.residence
    rows, share, touched = found.hot_rows, found.hot_share, 0 if residence is None else residence.rows
    reads = (
        f"{rows} rows, which served {percent(share)} of {found.lookups} lookups, of {found.rows} in "
        f"{counted(found.tables, 'table')}; {touched} reads of them between requests"
    )
    if rows and share < _SHARE:
        return Verified(False, f"no rows stand out: {reads}")
    return Verified(rows > 0 and touched >= rows, reads)


FIX = Fix(
    id="cache.embeddings",
    title="keep the most used rows of embedding tables in the cache",
    treats=("host.slowdown", "cold.start"),
    relief=0.2,
    gentle=True,
    risk="an idle worker uses memory bandwidth that other programs on the machine may need",
    stateless=True,
    needs=(
        at_default("hot_rows", "{} rows are kept warm already"),
        on_its_device("cache.embeddings"),
        at_default("backend", "{} has its own tables"),
        _large_tables,
    ),
    sets=_sets,
    verify=_verify,
)
