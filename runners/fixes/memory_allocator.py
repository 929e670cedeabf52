"""``memory.allocator``: keep freed memory in the process instead of faulting it in again for each request."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from latfix.record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified

_TUNABLES = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=67108864"
#: Minor faults a request below which there is nothing to win; measured, see docs/fixes.md.
_WORTH_IT = 300.0


def faults_per_request(record: RunRecord) -> float:
    """Minor page faults of prepare, collate, compute and finish, a request, after the first tenth of the run."""
    rows, batches = record.requests, record.batches
    requests = int(np.count_nonzero(record.measured))
    if not requests:
        return 0.0
    steady = batches["first_shape"] == 0
    collated = float(batches["collate_minflt"][steady].sum() + batches["compute_minflt"][steady].sum())
    own = float(rows["prepare_minflt"].sum() + rows["finish_minflt"].sum())
    return collated / max(float(batches["size"][steady].sum()), 1.0) + own / requests


def _obstacle(context: Context) -> str:
    if platform.libc_ver()[0] != "glibc":
        return "the C library is not glibc"
    if "GLIBC_TUNABLES" in context.settings.env:
        return "GLIBC_TUNABLES is set already"
    if "LD_PRELOAD" in context.settings.env:
        return "another allocator is preloaded"
    faults = faults_per_request(context.record)
    return "" if faults >= _WORTH_IT else f"only {faults:.0f} page faults a request; it pays above {_WORTH_IT:.0f}"


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"env": {"GLIBC_TUNABLES": _TUNABLES}}


def _verify(applied: Applied) -> Verified:
    now, before = faults_per_request(applied.record), faults_per_request(applied.without)
    return Verified(now < 0.5 * before, f"{now:.0f} page faults a request, {before:.0f} without")


FIX = Fix(
    id="memory.allocator",
    title="keep freed memory in the process (glibc: no mmap, no trim)",
    treats=("memory.page_faults", "memory.allocator", "memory.fragmentation"),
    relief=0.7,
    gentle=True,
    risk="resident memory up to 70 % higher",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
