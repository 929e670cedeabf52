"""``host.throttle``: the cgroup's CPU quota was exhausted."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import from_ns, milliseconds
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, in_units, reads
from latfix.profilers.evidence.outside.service_process import THROTTLED, Counter
from latfix.profilers.evidence.units import OUTSIDE_UNITS, Evidence

_SERIES = "cgroup.throttled_ns"


def _claim(evidence: Evidence, left: Left) -> Claim:
    """Time that units stood still while the cgroup's throttled time grew.

    Kernels before 6.17 count a throttled thread as runnable; later kernels dequeue it, so that it looks blocked.
    """
    runnable = {name: _sampled(evidence, name) for name in ("prepare", "finish", "collate", "compute")}
    if evidence.setup.workers == 1:  # one worker: growth at a batch's end happened since the previous batch
        batches = evidence.batches
        seen = np.maximum(batches["throttled_ns"], 0)
        if len(evidence.series(_SERIES)[0]) > 1:  # read rarely, so the growth may be much older
            grown = evidence.grown_around(_SERIES, batches["close_ns"], batches["finish_end_ns"])
            seen = np.minimum(seen, grown.astype(np.int64))
        compute = np.minimum(seen, left.runq["compute"])
        collate = np.minimum(seen - compute, left.runq["collate"])
        runnable |= {"compute": compute, "collate": collate, "finish": evidence.of_batch(seen - compute - collate)}
    units = {}
    for name in ("dispatch", "intake", "prepare", "lag", "collate", "compute", "finish"):
        wanted = runnable.get(name)
        taken = 0 if wanted is None else np.minimum(wanted, left.runq[name])
        stopped = np.maximum(_sampled(evidence, name) - taken, 0)
        units[name] = Parts(runq=wanted, blocked=np.minimum(stopped, evidence.beyond_usual(name, left.blocked[name])))
    return Claim(units=units)


def _sampled(evidence: Evidence, name: str) -> Ints:
    """Growth of the sampled counter between the samples around each unit."""
    unit = evidence.units[name]
    return evidence.grown_around(_SERIES, unit.start, unit.end).astype(np.int64)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    times, values = evidence.series(_SERIES)
    total = float(values[-1] - values[0]) if len(times) else float(np.sum(evidence.batches["throttled_ns"]))
    return (
        f"the cgroup was throttled for {from_ns(total)} in total; it stopped {figures.requests} requests, for up to "
        f"{milliseconds(figures.largest_ms)}; {figures.parts}."
    )


@in_units(*OUTSIDE_UNITS)
def _outside(evidence: Evidence, left: Left, name: str) -> Parts:
    """The growth of the control group's throttled time while the request was at the service."""
    start, end = evidence.units[name].span
    grown = np.minimum(Counter.of(evidence.samples, THROTTLED).grown(start, end), end - start)
    stopped = np.rint(grown).astype(np.int64)
    delayed = np.minimum(stopped, left.runq[name])
    return Parts(runq=delayed, excess=stopped - delayed)


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    total = from_ns(Counter.of(evidence.samples, THROTTLED).total)
    return (
        f"the service's control group was throttled for {total} in total; it stopped {figures.requests} "
        f"requests, for up to {milliseconds(figures.largest_ms)}; {figures.parts}."
    )


CAUSE = Cause(
    id="host.throttle",
    fixes=("host.threads",),
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
    outside_needs=reads(THROTTLED),
)
