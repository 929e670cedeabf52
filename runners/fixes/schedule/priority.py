"""``schedule.priority``: requests gain priority while they wait, so that no class starves."""

from __future__ import annotations

import numpy as np

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default
from latfix.runners.fixes.shared.queue_evidence import Waits, choose_ageing_ms, overtaking

#: A class starves if its p99 wait exceeds the highest class's by this share of the median latency.
_MUCH = 0.5
_NAMES = ("high", "normal", "low")


def _waits_by_class(record: RunRecord) -> dict[int, float]:
    """By class, p99 of the wait in the queue in milliseconds."""
    waits = Waits.of(record)
    return {
        int(rank): float(np.percentile(waits.wait[waits.rank == rank], 99)) / 1e6 for rank in np.unique(waits.rank)
    }


def _class_starves(context: Context) -> str:
    by_class = _waits_by_class(context.record)
    if len(by_class) < 2:
        return "all requests have one priority"
    highest, longest = by_class[min(by_class)], max(by_class.values())
    typical = float(np.median(Waits.of(context.record).latency)) / 1e6
    if longest - highest < _MUCH * typical:
        return (
            f"no class waits much longer than the highest: {longest:.3g} ms at p99 against {highest:.3g} ms, "
            f"and the median request takes {typical:.3g} ms"
        )
    return ""


def _verify(applied: Applied) -> Verified:
    """Without ageing no request is taken while a higher class waits, except to fill a batch of similar ones."""
    now, before = applied.both(lambda record: overtaking(Waits.of(record)).lower_first)
    waits, without = (
        ", ".join(f"{_NAMES[rank]} {wait:.3g} ms" for rank, wait in sorted(by_class.items()))
        for by_class in applied.both(_waits_by_class)
    )
    every = applied.settings.ageing_ms
    return Verified(
        every > 0 and now > before,
        f"{now} requests were served before a waiting one of a higher class ({before} without), at an interval "
        f"of {every:g} ms; p99 of the wait: {waits}; without: {without}",
    )


FIX = Fix(
    id="schedule.priority",
    title="raise the priority of requests that wait",
    treats=("traffic.priority",),
    relief=0.5,
    gentle=True,
    risk="requests of a higher class wait for lower ones that have waited long",
    reorders=True,
    needs=(at_default("ageing_ms", "waiting requests gain a class every {:g} ms already"), _class_starves),
    sets=lambda context: {"ageing_ms": choose_ageing_ms(context.record, context.settings, context.settings.schedule)},
    verify=_verify,
)
