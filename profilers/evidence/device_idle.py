"""How long a device was idle within a batch's compute, and whose time a copy took: from the device's own clock.

How long the device works for a batch is known from a profile of a few batches (``device_profile`` of ``run.json``,
made beside the run); what a batch took longer than that, the device waited. It can only have waited until the host
had issued the last operator: what was then still to be done ran without a gap.
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
#: Copies of about the same size, by powers of two; from so many on, their own time says what one needs.
_ENOUGH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """What profiled batches did on the device.

    :param elements: ``(k,)`` of their inputs, rising; ``busy`` ``(k,)`` nanoseconds in which something ran.
    :param sync_share: of the time in which nothing did, the part because the host had waited for the device.
    :param waits: how often it did at most, in a batch; ``launches`` operators in one, in the median.
    """

    elements: Floats
    busy: Floats
    sync_share: float
    waits: float
    launches: float

    @classmethod
    def of(cls, profiled: Sequence[DeviceWork]) -> DeviceProfile | None:
        """Of some batches; ``None`` where there is none."""
        if not profiled:
            return None
        names = ("elements", "busy_ns", "launch_ns", "sync_ns", "waits", "launches")
        table = {name: np.array([float(getattr(work, name)) for work in profiled]) for name in names}
        elements = np.unique(table["elements"])
        # Of batches alike, one may have been slow for a fault that is to be found: what is usual counts.
        usual = [np.median(table["busy_ns"][table["elements"] == size]) for size in elements]
        busy = np.maximum.accumulate(np.array(usual))
        idle = float((table["launch_ns"] + table["sync_ns"]).sum())
        return cls(
            elements=elements,
            busy=busy,
            sync_share=float(table["sync_ns"].sum()) / idle if idle > 0 else 0.0,
            waits=float(table["waits"].max()),
            launches=float(np.median(table["launches"])),
        )

    def busy_ns(self, elements: Ints) -> Floats:
        """``(m,)`` how long the device works for batches of so many elements; beyond the largest, in proportion."""
        wanted = elements.astype(np.float64)
        known = np.interp(wanted, self.elements, self.busy)
        return np.asarray(known * np.maximum(wanted / max(self.elements[-1], 1.0), 1.0), dtype=np.float64)


def idle_ns(evidence: Evidence) -> Ints | None:
    """``(m,)`` nanoseconds of each batch's compute in which the device waited for the host.

    :returns: ``None`` where the run was on no device, or nothing was profiled.
    """
    profile, batches = evidence.setup.device_profile, evidence.batches
    if profile is None or not evidence.setup.on_device:
        return None
    took, lead = batches["device_ns"].astype(np.float64), batches["lead_ns"].astype(np.float64)
    busy = profile.busy_ns(batches["padded_elements"]) * _beyond_elements(evidence, profile)
    # Beside another worker's batch the same work takes longer: that is not waiting for the host.
    waited = np.maximum(took - busy - _beside_ns(evidence), 0.0)
    # While the host issued: what of the work was not left for after it has been done in that time.
    issuing = np.maximum(took - lead, 0.0)
    most = np.maximum(issuing - np.maximum(busy - np.maximum(lead, 0.0), 0.0), 0.0)
    # A captured graph is issued at once.
    found = np.where((took > 0) & (batches["graph"] <= 0), np.minimum(waited, most), 0.0)
    return np.asarray(np.rint(found), dtype=np.int64)


def _beyond_elements(evidence: Evidence, profile: DeviceProfile) -> Floats:
    """``(m,)`` how many times the work of a typical batch with as many elements each batch is expected to be.

    Elements do not tell the work where a feature does, as the tokens to be written of an answer. What was profiled
    is of typical batches.
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


def _beside_ns(evidence: Evidence) -> Ints:
    """``(m,)`` for how long of each batch's compute another worker's ran on the same device."""
    batches = evidence.batches
    begin, end, worker = (batches[name] for name in ("h2d_end_ns", "compute_end_ns", "worker"))
    device = evidence.setup.device_numbers(worker)
    beside = np.zeros(len(begin), np.int64)
    for one in np.unique(worker):
        own = worker == one
        others = (device == device[own][0]) & ~own
        busy = Intervals.merged(begin[others], (end - begin)[others])
        beside[own] = busy.covered(begin[own], end[own])
    return beside


def unusual_idle_ns(evidence: Evidence) -> Ints | None:
    """:func:`idle_ns` beyond what it is in the median of undisturbed batches."""
    idle = idle_ns(evidence)
    if idle is None:
        return None
    quiet = idle[evidence.quiet_batch]
    usual = evidence.norms.of("device.idle", lambda: whole_median(quiet))
    return np.maximum(idle - usual, 0)


def copy_ns(evidence: Evidence, direction: Direction) -> Ints:
    """``(m,)`` how long each batch's copy took on the device, as far as it is part of its stage."""
    wall = evidence.units[UNIT_OF[direction]].wall
    return np.asarray(np.minimum(evidence.batches[f"copy_{direction}_ns"], wall), dtype=np.int64)


def needed_ns(evidence: Evidence, direction: Direction) -> Ints:
    """``(m,)`` how long a copy of as many bytes takes where nothing is in its way.

    By what was measured of pinned memory at the start of the run; where that is missing, by the run's own copies of
    about that size.
    """
    size = evidence.batches[f"copy_{direction}_bytes"]
    curve = evidence.setup.copy_costs.get(direction)
    if curve is not None:
        latency, per_byte = curve
        needed = np.where(size > 0, latency + per_byte * size, 0.0)
    else:
        needed = _usual(evidence, direction, size)
    return np.asarray(np.minimum(np.rint(needed), copy_ns(evidence, direction)), dtype=np.int64)


def asking_ns(evidence: Evidence, direction: Direction) -> Ints:
    """``(m,)`` what of each batch's copy the device may have waited for the host to ask for its next piece.

    Beyond what the bytes need. From pageable memory the host takes part in the copy: none of that is waiting.
    """
    batches = evidence.batches
    asking = batches[f"copy_{direction}_issue_ns"]
    if direction == "out":  # while the device still computed, the host was ahead
        asking = asking - np.maximum(batches["lead_ns"], 0)
    beyond = np.maximum(np.where(batches["pageable_bytes"] > 0, 0, asking) - needed_ns(evidence, direction), 0)
    return np.asarray(beyond, dtype=np.int64)


def _usual(evidence: Evidence, direction: Direction, size: Ints) -> Floats:
    """The median of quiet copies of about each size; a copy of a size that is rare needs what it took."""
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
