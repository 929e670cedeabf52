"""``memory.page_faults``: page faults during the request, counted, at the price calibrated on this machine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, in_units, reads
from latfix.profilers.causes.memory.heap_growth import heap_faults
from latfix.profilers.evidence.outside.service_process import DISK, MAJOR_FAULTS, MINOR_FAULTS, Counter
from latfix.profilers.evidence.units import OUTSIDE_UNITS, REQUEST_UNITS, Evidence

#: The run corrects the calibrated price within these factors if so many units faulted heavily: so often, beyond four
#: times the usual, that their faults (0.25 ms at the usual price) stand out from the scatter of work.
_CORRECTION, _HEAVY_UNITS, _HEAVY_FAULTS = (0.3, 4.0), 4, 500


def _claim(evidence: Evidence, left: Left) -> Claim:
    units, costs = {}, {}
    for name in ("prepare", "collate", "compute", "finish"):
        unit = evidence.units[name]
        price = fault_price_ns(evidence, name)
        paged_in = np.where(unit.majflt > 0, left.blocked[name], 0) if name in ("collate", "compute") else None
        # Faults on fresh memory of the heap are the allocator's.
        faults = unit.minflt - heap_faults(evidence, name)
        costs[name] = np.minimum(np.rint(faults * price).astype(np.int64), left.cpu_excess(name))
        units[name] = Parts(cpu=costs[name], blocked=paged_in)
    return Claim(units=units, disturbance=False, doubt=price_doubt(evidence, costs))


def price_doubt(evidence: Evidence, costs: Mapping[str, Ints]) -> Floats:
    """Per request, the standard error of its faults' cost due to the calibrated price.

    :param costs: by unit, nanoseconds that rest on the price.
    """
    total = np.zeros(len(evidence.ok))
    for name, cost in costs.items():
        total += cost if name in REQUEST_UNITS else evidence.of_batch(cost)
    return np.asarray(evidence.setup.minor_fault_error * total, dtype=np.float64)


def fault_price_ns(evidence: Evidence, name: str) -> float:
    """Nanoseconds per minor fault in this unit: the calibrated price, corrected by heavily faulting units.

    A fault's cost depends on what the kernel must do (zero, copy, or map a page), which the calibration cannot know.
    """
    return evidence.norms.of(f"fault_price.{name}", lambda: _paid_ns(evidence, name))


def _paid_ns(evidence: Evidence, name: str) -> float:
    unit, price = evidence.units[name], evidence.setup.minor_fault_ns
    if not len(unit.minflt):
        return price
    usual = float(np.median(unit.minflt))
    heavy = unit.minflt > 4 * usual + _HEAVY_FAULTS
    if np.count_nonzero(heavy) < _HEAVY_UNITS:
        return price
    extra = (unit.cpu - unit.expected_cpu)[heavy] - usual * price
    paid = float(np.median(extra / (unit.minflt[heavy] - usual)))
    # A price above any plausible one: these units were also slow for another reason.
    return float(max(paid, _CORRECTION[0] * price)) if paid <= _CORRECTION[1] * price else price


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    rows, batches, ok = evidence.rows, evidence.batches, evidence.ok
    own = rows["prepare_minflt"] + rows["finish_minflt"]
    faults = (own + evidence.of_batch(batches["collate_minflt"] + batches["compute_minflt"]))[ok]
    median, high = f"{np.median(faults):,.0f}", f"{np.quantile(faults, 0.99):,.0f}"
    price = f"{fault_price_ns(evidence, 'compute'):.0f} ns"
    how = f"calibrated here{_interval(evidence)}" if evidence.setup.calibrated else "not calibrated"
    return (
        f"requests had {median} (median) and {high} (p99) minor page faults, at {price} each in compute ({how}); "
        f"{figures.parts}."
    )


def _interval(evidence: Evidence) -> str:
    """The calibrated price's interval as text; empty if the record has none."""
    ends = [evidence.series(f"cost.minor_fault_{end}_ns")[1] for end in ("low", "high")]
    return f": {ends[0][-1]:.0f} to {ends[1][-1]:.0f} ns" if all(map(len, ends)) else ""


@in_units(*OUTSIDE_UNITS)
def _outside(evidence: Evidence, left: Left, name: str) -> Parts:
    """Faults of the process of a service behind an address, counted four times a second.

    Minor ones have a usual price, since those of another process cannot be calibrated.
    """
    minor, unit = Counter.of(evidence.samples, MINOR_FAULTS), evidence.units[name]
    price = evidence.setup.minor_fault_ns * minor.grown_around(*unit.span)
    waited = np.minimum(evidence.paged_in(name), left.cpu_excess(name))
    return Parts(cpu=waited + minor.apportioned(unit.end, left.cpu_excess(name) - waited, price))


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    major, minor, disk = (Counter.of(evidence.samples, name).total for name in (MAJOR_FAULTS, MINOR_FAULTS, DISK))
    waited = (
        f"its threads waited {from_ns(disk)} for disks"
        if disk
        else "the kernel does not tell how long its threads waited for disks (kernel.task_delayacct)"
    )
    return (
        f"the service's process had {minor:,.0f} minor page faults, and {major:,.0f} major ones, for which memory is "
        f"read from a disk; {waited}; {figures.parts}."
    )


CAUSE = Cause(
    id="memory.page_faults",
    fixes=(
        "memory.allocator",
        "memory.pool",
        "memory.page_prefault",
        "memory.huge_pages",
        "memory.jemalloc",
        "memory.tcmalloc",
    ),
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
    outside_needs=reads(MINOR_FAULTS),
)
