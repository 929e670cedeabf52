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
#: … unless this share of the tail's excess is memory's: few requests may have all of the faults.
_IN_TAIL = 0.05


def faults_per_request(record: RunRecord) -> float:
    """Minor page faults of prepare, collate, compute and finish, the mean over the measured requests."""
    rows, batches = record.requests, record.batches
    measured, counted = record.measured, batches["warmup"] == 0
    requests = int(np.count_nonzero(measured))
    if not requests:
        return 0.0
    shared = float(batches["collate_minflt"][counted].sum() + batches["compute_minflt"][counted].sum())
    own = float(rows["prepare_minflt"][measured].sum() + rows["finish_minflt"][measured].sum())
    return (shared + own) / requests


def _obstacle(context: Context) -> str:
    if platform.libc_ver()[0] != "glibc":
        return "the C library is not glibc"
    if "GLIBC_TUNABLES" in context.settings.env:
        return "GLIBC_TUNABLES is set already"
    if "LD_PRELOAD" in context.settings.env:
        return "another allocator is preloaded"
    faults = faults_per_request(context.record)
    in_tail = sum(cause.tail_share for cause in context.diagnosis.causes if cause.cause in FIX.treats)
    if faults >= _WORTH_IT or in_tail >= _IN_TAIL:
        return ""
    return (
        f"only {faults:.0f} page faults a request; it pays above {_WORTH_IT:.0f}, or where the tail is made of them"
    )


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
