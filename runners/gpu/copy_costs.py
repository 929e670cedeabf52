"""The cost of a copy between pinned memory and the device: a latency, and a time per byte."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latfix.runners.gpu.accelerator import Accelerator

#: Bytes of the timed copies: one dominated by latency, and one by size.
_SMALL, _LARGE = 4 << 10, 16 << 20
_TIMES = 7
_MIB = 1 << 20


def copy_costs(accelerator: Accelerator, *, large: int = _LARGE) -> dict[str, float]:
    """``copy_in_ns``, ``copy_in_mib_ns``, ``copy_out_ns``, ``copy_out_mib_ns`` for ``calibration`` of ``run.json``.

    Medians of a few copies by the device's clock; takes some milliseconds.
    """
    import torch

    stream = accelerator.stream()
    times: dict[tuple[str, int], float] = {}
    with accelerator.using(stream):
        for size in (_SMALL, large):
            host = accelerator.pinned(size, torch.uint8).zero_()
            there = accelerator.upload(host, None)
            times["in", size] = _median_ns(accelerator, stream, partial(accelerator.upload, host, None))
            times["out", size] = _median_ns(accelerator, stream, partial(accelerator.download, there, host))
        stream.synchronize()
    found: dict[str, float] = {}
    for direction in ("in", "out"):
        small, much = times[direction, _SMALL], times[direction, large]
        found[f"copy_{direction}_ns"] = small
        found[f"copy_{direction}_mib_ns"] = max(much - small, 0.0) * _MIB / (large - _SMALL)
    return found


def _median_ns(accelerator: Accelerator, stream: Any, copy: Any) -> float:
    took = []
    for k in range(_TIMES + 1):
        begin, end = accelerator.event(), accelerator.event()
        begin.record(stream)
        kept = copy()
        end.record(stream)
        end.synchronize()
        del kept
        if k:  # the first also allocates memory
            took.append(begin.elapsed_time(end) * 1e6)
    return statistics.median(took)
