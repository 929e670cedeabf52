"""``traffic.*``: waits that the arrivals themselves cause. Computed by the replay of the queue."""

from __future__ import annotations

from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import FASTER_MODEL, Cause, TailFigures
from latfix.profilers.evidence.units import Evidence


def _waits(figures: TailFigures) -> str:
    return (
        f"even if every request took only its reference time, {figures.requests} requests would have waited, up to "
        f"{milliseconds(figures.largest_ms)}"
    )


def _burst(evidence: Evidence, figures: TailFigures) -> str:
    return f"{_waits(figures)}; the backlog did not keep growing ({evidence.setup.capacity_text})."


def _overload(evidence: Evidence, figures: TailFigures) -> str:
    return (
        f"{_waits(figures)}: the load stayed at or above the capacity ({evidence.setup.capacity_text}), and the "
        "backlog kept growing."
    )


def _priority(evidence: Evidence, figures: TailFigures) -> str:
    classes = len(set(evidence.priority[evidence.ok].tolist()))
    return (
        f"the traffic has {classes} priorities; compared with the order of arrival, {figures.requests} requests were "
        f"served later, by up to {milliseconds(figures.largest_ms)}."
    )


BURST = Cause(
    id="traffic.burst",
    fixes=("host.workers", "batch.size", "schedule.shortest_expected", *FASTER_MODEL),
    sentence=_burst,
)
OVERLOAD = Cause(
    id="traffic.overload",
    fixes=("host.workers", "batch.size", "admit.limit", "admit.shed", *FASTER_MODEL),
    sentence=_overload,
)
PRIORITY = Cause(id="traffic.priority", fixes=("schedule.priority",), sentence=_priority)
