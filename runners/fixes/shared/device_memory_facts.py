"""What a run's record shows of the device's memory, for the fixes that treat it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from latfix.profilers.gpu.alloc_conf import read_conf
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Context
from latfix.runners.fixes.shared.conditions import tail_share

#: What the device's memory makes of a tail.
TREATS = ("memory.allocator", "memory.fragmentation")
#: The share of the tail from which calls of the device without a stall are worth a setting.
IN_TAIL = 0.05
_MIB = 1 << 20
#: Room beyond the most that was in use, for pieces that do not fit into each other.
_MARGIN = 1.25
_STEP_MIB = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of the device for memory in a run, from its first to its last request."""

    retries: int = 0
    allocs: int = 0
    frees: int = 0

    @property
    def total(self) -> int:
        """Segments taken and given back."""
        return self.allocs + self.frees

    def words(self) -> str:
        """As reports show it."""
        return f"{_many(self.total, 'call')} of the device for memory, {_many(self.retries, 'stall')}"

    def fewer_than(self, before: Calls) -> bool:
        """True if stalls and calls halved, or are zero in both."""
        return self.fewer_stalls_than(before) and self.total <= 0.5 * before.total

    def fewer_stalls_than(self, before: Calls) -> bool:
        """True if stalls halved, or are zero in both: :meth:`beside` mentions that."""
        return self.retries <= 0.5 * before.retries

    def beside(self, before: Calls) -> str:
        """Both in words. Where nothing stalled without a fix, its effect has not been seen: only times can tell."""
        said = f"{self.words()}; without it {before.words()}"
        if before.retries or self.retries:
            return said
        return f"{said}: nothing stalled in these windows, and whether it pays is left to their times"


def facts(record: RunRecord) -> Mapping[str, Any]:
    """``device_memory`` of ``run.json``; empty for a run on the host, and for older records."""
    return record.meta.device_memory


def by_device(record: RunRecord) -> dict[str, Mapping[str, Any]]:
    """:func:`facts` of each device that workers were on, the first worker's first; empty where there are none."""
    known = facts(record)
    return {record.meta.device: known, **known.get("others", {})} if known else {}


def calls(record: RunRecord) -> Calls:
    """Calls while requests were served: by batches where they were read, else by counters of all devices."""
    batches = record.batches
    counted = (batches["warmup"] == 0) & (batches["device_read"] > 0)
    if counted.any():
        names = ("alloc_retries", "device_allocs", "device_frees")
        retries, allocs, frees = (int(batches[name][counted].sum()) for name in names)
    else:
        told = by_device(record).values()
        retries, allocs, frees = (
            sum(int(known.get(name, 0)) for known in told) for name in ("retries", "allocs", "frees")
        )
    return Calls(retries=retries, allocs=allocs, frees=frees)


def trouble(context: Context) -> str:
    """The device's memory must have cost time, by stalls or as a share of the tail."""
    if not context.device.startswith("cuda"):
        return "the model is not on a CUDA device"
    known = facts(context.record)
    if not known:
        return "the run tells nothing of the device's memory"
    if known["backend"] != "native":
        return f"the device's memory is managed by {known['backend']}, which counts nothing"
    made = calls(context.record)
    if context.latest is not None and not calls(context.latest).total:
        return "the fixes kept so far leave no call of the device for memory"
    if made.retries:
        return ""
    share = max(tail_share(context.diagnosis, TREATS), 0.0)
    if made.total and share >= IN_TAIL:
        return ""
    return f"{made.words()}, and {share:.1%} of the tail is memory; it pays with stalls, or from {IN_TAIL:.0%}"


def worker_growth_mib(record: RunRecord) -> int:
    """MiB that each worker's stream needs of the device beside the model, with some room; 0 where it grew by nothing.

    By what was in use at most. Never more than was held: that much is known to fit. Of several devices, the one whose
    workers need most: they all reserve as much.
    """
    return max((_growth_mib(record, known) for known in by_device(record).values()), default=0)


def _growth_mib(record: RunRecord, known: Mapping[str, Any]) -> int:
    used = known["allocated_peak_bytes"] - known["allocated_start_bytes"]
    held = known["reserved_peak_bytes"] - known["reserved_start_bytes"]
    workers = max(int(known.get("workers", len(np.unique(record.batches["worker"])))), 1)
    # Where nothing stalled, what was held did the job as it was.
    wanted = float(min(_MARGIN * used, held) if calls(record).retries else held)
    return math.ceil(max(wanted, 0.0) / workers / _MIB / _STEP_MIB) * _STEP_MIB


def room_bytes(known: Mapping[str, Any]) -> int:
    """Bytes that the process could have from a device: what it held and what was left, within its limit.

    :param known: one device's of :func:`by_device`.
    """
    room = known["reserved_end_bytes"] + known["left_bytes"]
    return int(min(room, known["share"] * known["total_bytes"]))


def not_in_effect(record: RunRecord, conf: str) -> list[str]:
    """Settings of ``PYTORCH_ALLOC_CONF`` that the allocator itself does not say it has, by name."""
    told: Mapping[str, Any] = facts(record).get("settings", {})
    text = read_conf(str(told.get("PYTORCH_ALLOC_CONF") or told.get("PYTORCH_CUDA_ALLOC_CONF") or ""))
    return [name for name, value in read_conf(conf).items() if not _has(told, text, name, value)]


def _has(told: Mapping[str, Any], text: Mapping[str, str], name: str, value: str) -> bool:
    if name == "expandable_segments" and name in told:
        return bool(told[name]) == (value == "True")
    if name == "max_split_size_mb" and "max_split_size" in told:
        return int(told["max_split_size"]) == int(value) * _MIB
    if name == "garbage_collection_threshold" and name in told:
        return math.isclose(float(told[name]), float(value), rel_tol=1e-6)
    return text.get(name) == value


def _many(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
