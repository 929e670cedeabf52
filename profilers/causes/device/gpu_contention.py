"""``gpu.contention``: another process computed on the device at the same time.

The device runs processes in turns of some milliseconds: a batch, or a copy before it, waits for the end of a turn.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.evidence.device_idle import UNIT_OF, slower_ns
from latfix.profilers.evidence.nvml_samples import at_batches, at_next_poll, largest_nearby
from latfix.profilers.evidence.units import Evidence
from latfix.run_record.schema import OTHERS_UTIL, OWN_UTIL

#: Percent. A process that only holds memory shows a little utilization.
_BUSY = 5.0
#: Least batches without other processes whose delays are not owed to these.
_ENOUGH = 30


def _claim(evidence: Evidence, left: Left) -> Claim:
    taken = _taken(evidence)
    if taken is None:
        return Claim()
    excess = {"compute": left.cpu_excess("compute")}
    # A copy from memory that is not pinned is slow without any neighbor.
    pinned = evidence.batches["pageable_bytes"] == 0
    for direction, unit in UNIT_OF.items():
        excess[unit] = np.where(pinned, np.minimum(slower_ns(evidence, direction), left.cpu[unit]), 0)
    units = {}
    for unit, beyond in excess.items():
        owed = evidence.norms.of(f"gpu.contention.{unit}", partial(_owed_share, beyond, taken > 0))
        most = np.rint(evidence.units[unit].wall * taken * owed)
        units[unit] = Parts(cpu=np.minimum(most.astype(np.int64), beyond))
    return Claim(units=units)


def _owed_share(beyond: Ints, beside: Bools) -> float:
    """The share of the delays beside other processes that batches without them do not have."""
    if not beside.any() or np.count_nonzero(~beside) < _ENOUGH:
        return 1.0
    return float(1.0 - min(beyond[~beside].mean() / max(beyond[beside].mean(), 1.0), 1.0))


def _taken(evidence: Evidence) -> Floats | None:
    """The share of the device that other processes used at each batch; ``None`` if NVML does not separate them.

    The driver's figures by process are averages of some seconds. The device's total is not, so it tells when: what it
    has beyond this process's share is that of others, if there are any at that time.
    """
    own, others = (at_batches(evidence, series) for series in (OWN_UTIL, OTHERS_UTIL))
    if own is None or others is None:
        return None
    own, others = np.nan_to_num(own), np.nan_to_num(others)
    totals = [at_batches(evidence, "nvml.gpu_util"), at_next_poll(evidence, "nvml.gpm_sm_util")]
    known = [np.nan_to_num(total) for total in totals if total is not None]
    if known:
        nearby = largest_nearby(evidence, OTHERS_UTIL)
        others = np.where(nearby >= _BUSY, np.max(known, axis=0) - own, 0.0)
    busy = np.where(others >= _BUSY, others, 0.0)
    return np.asarray(busy / np.maximum(own + busy, 1.0))


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    taken = _taken(evidence)
    assert taken is not None, "the cause claims nothing without figures by process"
    hit = taken > 0
    most = share(float(taken.max(initial=0.0)))
    return (
        f"other processes computed on the device during {np.count_nonzero(hit)} of {len(hit)} batches, with up to "
        f"{most} of it; {figures.parts_and_largest}."
    )


CAUSE = Cause(id="gpu.contention", fixes=("host.routing",), claim=_claim, sentence=_sentence)
