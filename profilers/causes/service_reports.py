"""Causes that a service reports itself, in its metrics or its own recording, located but not explained by it.

Its own work may also show in the CPU time of its threads.

``service.queue``: the request waited in the service's queue.
``service.compute``: the service worked on it for longer than on others of its size.
``network.transit``: the time beyond all that the service reports: the network, or the request was not yet accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, in_units, median_and_p99
from latfix.profilers.causes.service_waits import beyond_usual
from latfix.profilers.evidence.outside.server_account import BY_THREAD, WORK
from latfix.profilers.evidence.run_baselines import whole_median
from latfix.profilers.evidence.units import OUTSIDE_UNITS, Evidence


def _queue(evidence: Evidence, _left: Left) -> Claim:
    if evidence.setup.servers or "queue" not in evidence.told.parts:
        return Claim()  # the queue's own model divides the waits
    return Claim(own={"queue": evidence.rows["queue_ns"]})


@in_units(*OUTSIDE_UNITS)
def _compute(evidence: Evidence, _left: Left, name: str) -> Parts:
    worked = evidence.told.worked(evidence.rows)[name]
    usual = evidence.norms.of(f"told.{name}", partial(whole_median, worked[evidence.ok]))
    return Parts(excess=evidence.at_units(name, np.maximum(worked - usual, 0)))


def _transit(evidence: Evidence, left: Left) -> Claim:
    return beyond_usual(evidence, left, evidence.told.of("network", evidence.rows), "told.network")


def _sentence(parts: tuple[str, ...], words: str, evidence: Evidence, figures: TailFigures) -> str:
    told = evidence.told
    spent: Ints = np.sum([told.of(part, evidence.rows) for part in parts], axis=0)
    sources = ", ".join(told.sources[part] for part in parts if part in told.sources)
    how = (
        f"interval, not by request ({sources}: {told.known_as})"
        if told.interval_ns and sources != BY_THREAD
        else f"request ({sources})"
    )
    return f"{words} {median_and_p99(spent[evidence.ok])}, measured by {how}; {figures.parts}."


def _reports(*parts: str) -> Callable[[Evidence], bool]:
    return lambda evidence: any(part in evidence.told.parts for part in parts)


QUEUE = Cause(
    id="service.queue",
    outside=_queue,
    outside_needs=_reports("queue"),
    sentence=partial(_sentence, ("queue",), "in the service's own queue, requests waited"),
)
COMPUTE = Cause(
    id="service.compute",
    outside=_compute,
    outside_needs=_reports(*WORK),
    sentence=partial(_sentence, WORK, "the service's own work for a request took"),
)
TRANSIT = Cause(
    id="network.transit",
    outside=_transit,
    outside_needs=_reports("network"),
    sentence=partial(_sentence, ("network",), "outside of the time that the service reports, requests spent"),
)
