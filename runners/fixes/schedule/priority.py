"""``schedule.priority``: classes gain on each other while they wait, so that none is overtaken without end."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.queue_evidence import Waits, choose_ageing_ms, overtaking

#: A class starves where its p99 wait is so many times that of all requests' median latency longer than the highest's.
_MUCH = 0.5
_NAMES = ("high", "normal", "low")


def _waits_by_class(waits: Waits) -> dict[int, float]:
    """p99 of the wait in the queue by class, milliseconds."""
    return {
        int(rank): float(np.percentile(waits.wait[waits.rank == rank], 99)) / 1e6 for rank in np.unique(waits.rank)
    }


def _obstacle(context: Context) -> str:
    if context.settings.ageing_ms > 0:
        return f"waiting requests gain a class every {context.settings.ageing_ms:g} ms already"
    waits = Waits.of(context.record)
    by_class = _waits_by_class(waits)
    if len(by_class) < 2:
        return "all requests have one priority"
    highest, longest = by_class[min(by_class)], max(by_class.values())
    typical = float(np.median(waits.latency)) / 1e6
    if longest - highest < _MUCH * typical:
        return (
            f"no class waits much longer than the highest: {longest:.3g} ms at p99 against {highest:.3g} ms, "
            f"where the median request takes {typical:.3g} ms"
        )
    return ""


def _change(context: Context) -> dict[str, Any]:
    return {"ageing_ms": choose_ageing_ms(context.record, context.settings, context.settings.schedule)}


def _said(record: RunRecord) -> str:
    by_class = _waits_by_class(Waits.of(record))
    return ", ".join(f"{_NAMES[rank]} {wait:.3g} ms" for rank, wait in sorted(by_class.items()))


def _verify(applied: Applied) -> Verified:
    """Without ageing nobody is taken up while a higher class waits, except to fill a batch of its like."""
    now = overtaking(Waits.of(applied.record)).lower_first
    before = overtaking(Waits.of(applied.without)).lower_first
    every = applied.record.meta["settings"].get("ageing_ms", 0.0)
    return Verified(
        every > 0 and now > before,
        f"{now} requests were taken up before one of a higher class that waited ({before} without), at an interval "
        f"of {every:g} ms; p99 of the wait: {_said(applied.record)}; without: {_said(applied.without)}",
    )


FIX = Fix(
    id="schedule.priority",
    title="let waiting requests gain on higher classes",
    treats=("traffic.priority",),
    relief=0.5,
    gentle=True,
    risk="requests of a higher class wait for lower ones that have waited long",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
