"""Idle time of a device within a batch's compute, and times of copies, from the device's own clock.

A profile of a few batches (``device_profile`` of ``run.json``, made outside the run) gives the device's busy time per
batch; the rest of a batch's time the device waited. It can only have waited until the host had issued the last
operator: the remaining work then ran without a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.evidence.run_baselines import whole_median
from latfix.run_record.process_facts import DeviceWork

if TYPE_CHECKING:
    from latfix.profilers.evidence.units import Evidence

Direction = Literal["in", "out"]
#: The unit that holds each copy.
UNIT_OF: Mapping[Direction, str] = {"in": "h2d", "out": "d2h"}
#: Least number of copies of about the same size (by powers of two) whose median is what such a copy needs.
_ENOUGH = 8
#: Profiled batches differ in their idle time if this share of it is beyond a typical batch's.
_UNUSUAL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """Device activity of profiled batches.

    :param elements: ``(k,)`` input elements, ascending; ``busy`` ``(k,)`` busy nanoseconds.
    :param sync_share: share of the idle time that followed a wait of the host for the device: of the idle time beyond
        a typical batch's, if some of the batches have more.
    :param waits: largest number of such waits in a batch; ``launches`` the median number of operators.
    """

    elements: Floats
    busy: Floats
    sync_share: float
    waits: float
    launches: float

    @classmethod
    def of(cls, profiled: Sequence[DeviceWork]) -> DeviceProfile | None:
        """The profile of some batches; ``None`` without any."""
        if not profiled:
            return None
        names = ("elements", "busy_ns", "launch_ns", "sync_ns", "waits", "launches")
        table = {name: np.array([float(getattr(work, name)) for work in profiled]) for name in names}
        elements = np.unique(table["elements"])
        # One of several like batches may have been slow because of a fault, so the median counts.
        usual = [np.median(table["busy_ns"][table["elements"] == size]) for size in elements]
        busy = np.maximum.accumulate(np.array(usual))
        launch, sync = table["launch_ns"], table["sync_ns"]
        beyond = [np.maximum(part - np.median(part), 0.0) for part in (launch, sync)]
        if sum(part.sum() for part in beyond) > _UNUSUAL * (launch + sync).sum():
            launch, sync = beyond
        idle = float((launch + sync).sum())
        return cls(
            elements=elements,
            busy=busy,
            sync_share=float(sync.sum()) / idle if idle > 0 else 0.0,
            waits=float(table["waits"].max()),
            launches=float(np.median(table["launches"])),
        )

    def busy_ns(self, elements: Ints) -> Floats:
        """``(m,)`` busy nanoseconds for batches of so many elements; proportional beyond the largest."""
        wanted = elements.astype(np.float64)
        known = np.interp(wanted, self.elements, self.busy)
        return np.asarray(known * np.maximum(wanted / max(self.elements[-1], 1.0), 1.0), dtype=np.float64)


def idle_ns(evidence: Evidence) -> Ints | None:
    """``(m,)`` nanoseconds of each batch's compute in which the device waited for the host.

    :returns: ``None`` for a run on the CPU, or without a profile.
    """
    profile, batches = evidence.setup.device_profile, evidence.batches
    if profile is None or not evidence.setup.on_device:
        return None
    took, lead = batches["device_ns"].astype(np.float64), batches["lead_ns"].astype(np.float64)
    busy = profile.busy_ns(batches["padded_elements"]) * _relative_work(evidence, profile)
    # Next to another worker's batch the same work takes longer, which is not a wait for the host.
    waited = np.maximum(took - busy - _shared_ns(evidence), 0.0)
    # Busy time while the host was issuing is all work except the part done after it.
    issuing = np.maximum(took - lead, 0.0)
    most = np.maximum(issuing - np.maximum(busy - np.maximum(lead, 0.0), 0.0), 0.0)
    # A captured graph is issued at once.
    idle = np.where((took > 0) & (batches["graph"] <= 0), np.minimum(waited, most), 0.0)
    return np.asarray(np.rint(idle), dtype=np.int64)


def _relative_work(evidence: Evidence, profile: DeviceProfile) -> Floats:
    """``(m,)`` each batch's expected work relative to a typical batch with as many elements.

    The work may depend on a feature rather than on elements, such as the tokens of an answer. The profile is of
    typical batches.
    """
    elements, expected = evidence.batches["padded_elements"], evidence.expected.padded.astype(np.float64)
    if not evidence.expected.models["compute"].accepted:
        return np.ones(len(expected))
    known = profile.elements
    nearest = np.abs(elements[:, None] - known[None, :]).argmin(axis=1)
    typical = evidence.norms.of(
        "device.typical_work",
        lambda: [
            (float(np.median(elements[nearest == k])), float(np.median(expected[nearest == k])))
            for k in np.unique(nearest).tolist()
        ],
    )
    at, usual = (np.array(column) for column in zip(*typical, strict=True))
    return np.asarray(expected / np.maximum(np.interp(elements, at, usual), 1.0), dtype=np.float64)


def _shared_ns(evidence: Evidence) -> Ints:
    """``(m,)`` nanoseconds of each batch's compute while another worker's ran on the same device."""
    batches = evidence.batches
    begin, end, worker = (batches[name] for name in ("h2d_end_ns", "compute_end_ns", "worker"))
    device = evidence.setup.device_numbers(worker)
    shared = np.zeros(len(begin), np.int64)
    for one in np.unique(worker):
        own = worker == one
        others = (device == device[own][0]) & ~own
        busy = Intervals.merged(begin[others], (end - begin)[others])
        shared[own] = busy.covered(begin[own], end[own])
    return shared


def unusual_idle_ns(evidence: Evidence) -> Ints | None:
    """:func:`idle_ns` beyond what it is in the median of undisturbed batches."""
    idle = idle_ns(evidence)
    if idle is None:
        return None
    quiet = idle[evidence.quiet_batch]
    usual = evidence.norms.of("device.idle", lambda: whole_median(quiet))
    return np.maximum(idle - usual, 0)


def copy_ns(evidence: Evidence, direction: Direction) -> Ints:
    """``(m,)`` duration of each batch's copy on the device, limited to its stage."""
    wall = evidence.units[UNIT_OF[direction]].wall
    return np.asarray(np.minimum(evidence.batches[f"copy_{direction}_ns"], wall), dtype=np.int64)


def needed_ns(evidence: Evidence, direction: Direction) -> Ints:
    """``(m,)`` undisturbed duration of a copy of as many bytes.

    From the calibration of pinned memory at the start of the run; without it, from the run's own copies of about that
    size.
    """
    size = evidence.batches[f"copy_{direction}_bytes"]
    curve = evidence.setup.copy_costs.get(direction)
    if curve is not None:
        latency, per_byte = curve
        needed = np.where(size > 0, latency + per_byte * size, 0.0)
    else:
        needed = _usual(evidence, direction, size)
    return np.asarray(np.minimum(np.rint(needed), copy_ns(evidence, direction)), dtype=np.int64)


def slower_ns(evidence: Evidence, direction: Direction) -> Ints:
    """Duration of each batch's copy beyond its bytes' need and the host's share, never negative."""
    slower = copy_ns(evidence, direction) - needed_ns(evidence, direction) - issue_wait_ns(evidence, direction)
    return np.asarray(np.maximum(slower, 0), dtype=np.int64)


def issue_wait_ns(evidence: Evidence, direction: Direction) -> Ints:
    """``(m,)`` time of each batch's copy in which the device may have waited for the host to issue the next part.

    Beyond the bytes' need. With pageable memory the host takes part in the copy, so none of it is waiting.
    """
    batches = evidence.batches
    issuing = batches[f"copy_{direction}_issue_ns"]
    if direction == "out":  # while the device still computed, the host was ahead
        issuing = issuing - np.maximum(batches["lead_ns"], 0)
    beyond = np.maximum(np.where(batches["pageable_bytes"] > 0, 0, issuing) - needed_ns(evidence, direction), 0)
    return np.asarray(beyond, dtype=np.int64)


def _usual(evidence: Evidence, direction: Direction, size: Ints) -> Floats:
    """The median of quiet copies of about each size; a copy of a rare size needs what it took."""
    took = evidence.batches[f"copy_{direction}_ns"].astype(np.float64)
    group = np.where(size > 0, np.ceil(np.log2(np.maximum(size, 1))), -1).astype(np.int64)
    needed = took.copy()
    for each in np.unique(group[group >= 0]):
        of_group = group == each
        quiet = took[of_group & evidence.quiet_batch]
        usual = evidence.norms.of(
            f"copy.{direction}.{each}",
            lambda quiet=quiet: float(np.median(quiet)) if len(quiet) >= _ENOUGH else -1.0,  # type: ignore[misc]
        )
        if usual >= 0:
            needed[of_group] = usual
    return needed
