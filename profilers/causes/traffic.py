"""``traffic.*``: waits that the arrivals themselves cause.

Computed by the replay of the queue. In a service behind an address without a known queue, they are waits for the work
of other requests that share its cores.
"""

from __future__ import annotations

from functools import partial

from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import FASTER_MODEL, Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.evidence.units import OUTSIDE_UNITS, Evidence


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


def _outside(evidence: Evidence, _left: Left, *, growing: bool) -> Claim:
    """Waits for others' work that the arrivals alone cause.

    :param growing: of a backlog that grew for the whole run.
    """
    if evidence.shared.growing != growing:
        return Claim()
    waits = {name: evidence.waits_for_others(name) for name in OUTSIDE_UNITS}
    return Claim(units={name: Parts(runq=runnable, excess=blocked) for name, (runnable, blocked, _) in waits.items()})


def _sharing(evidence: Evidence, figures: TailFigures, *, growing: bool) -> str:
    """The evidence without a known queue; that of a queue if there is one."""
    shared = evidence.shared
    if not shared.cores:
        return (_overload if growing else _burst)(evidence, figures)
    backlog = "kept growing" if growing else "did not keep growing"
    work = milliseconds(shared.work_ns / 1e6)
    known = f"answers come as if requests shared {shared.cores:.1f} cores, with {work} of work each on average"
    if shared.watched:
        known = (
            f"the service's process used up to {shared.cores:.1f} cores at once, and {work} of them for a typical "
            "request"
        )
    return (
        f"{known}; with these, {figures.requests} requests waited for the work of others that came at the same time, "
        f"up to {milliseconds(figures.largest_ms)}; the backlog {backlog}."
    )


def _queue_known(evidence: Evidence) -> bool:
    """True if waiting and being served can be told apart."""
    return bool(evidence.setup.servers or evidence.shared.cores)


BURST = Cause(
    id="traffic.burst",
    fixes=("host.workers", "batch.size", "schedule.shortest_expected", *FASTER_MODEL),
    sentence=_burst,
    outside=partial(_outside, growing=False),
    outside_sentence=partial(_sharing, growing=False),
    outside_needs=_queue_known,
)
OVERLOAD = Cause(
    id="traffic.overload",
    fixes=("host.workers", "batch.size", "admit.limit", "admit.shed", *FASTER_MODEL),
    sentence=_overload,
    outside=partial(_outside, growing=True),
    outside_sentence=partial(_sharing, growing=True),
    outside_needs=_queue_known,
)
PRIORITY = Cause(id="traffic.priority", fixes=("schedule.priority",), sentence=_priority)
