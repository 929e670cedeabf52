"""The device's memory in a run's record, for the fixes that treat it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from latfix.formatting import counted, percent
from latfix.profilers.gpu.alloc_conf import read_conf
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Context
from latfix.runners.fixes.shared.conditions import tail_share

#: Causes that come from the device's memory.
TREATS = ("memory.allocator", "memory.fragmentation")
#: Minimum share of the tail for which device calls without a stall are worth a setting.
IN_TAIL = 0.05
_MIB = 1 << 20
#: A reservation is a multiple of it.
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
        """For reports."""
        return f"{counted(self.total, 'call')} of the device for memory, {counted(self.retries, 'stall')}"

    def fewer_than(self, before: Calls) -> bool:
        """True if stalls and calls halved, or are zero in both."""
        return self.fewer_stalls_than(before) and self.total <= 0.5 * before.total

    def fewer_stalls_than(self, before: Calls) -> bool:
        """True if stalls halved, or are zero in both: :meth:`compared_with` mentions that."""
        return self.retries <= 0.5 * before.retries

    def compared_with(self, before: Calls) -> str:
        """Both in words; if nothing stalled, only latencies can show an effect."""
        text = f"{self.words()}; without it {before.words()}"
        if before.retries or self.retries:
            return text
        return f"{text}: nothing stalled in these windows, so only their latencies decide"


def facts(record: RunRecord) -> Mapping[str, Any]:
    """``device_memory`` of ``run.json``; empty for a run on the host, and for older records."""
    return record.meta.device_memory


def by_device(record: RunRecord) -> dict[str, Mapping[str, Any]]:
    """:func:`facts` of each device with workers, the first worker's first; empty if there are none."""
    known = facts(record)
    return {record.meta.device: known, **known.get("others", {})} if known else {}


def calls(record: RunRecord) -> Calls:
    """Calls while requests were served: by batch if counted there, otherwise by the counters of all devices."""
    batches = record.batches
    read = (batches["warmup"] == 0) & (batches["device_read"] > 0)
    if read.any():
        names = ("alloc_retries", "device_allocs", "device_frees")
        retries, allocs, frees = (int(batches[name][read].sum()) for name in names)
    else:
        devices = by_device(record).values()
        retries, allocs, frees = (
            sum(int(known.get(name, 0)) for known in devices) for name in ("retries", "allocs", "frees")
        )
    return Calls(retries=retries, allocs=allocs, frees=frees)


def trouble(context: Context) -> str:
    """The device's memory must have cost time, by stalls or as a share of the tail."""
    if not context.device.startswith("cuda"):
        return "the model is not on a CUDA device"
    known = facts(context.record)
    if not known:
        return "the record has no data on the device's memory"
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
    part = f"{100 * share:.1f} % of the tail is memory"
    return f"{made.words()}, and {part}; it pays with stalls, or from {percent(IN_TAIL)}"


def worker_growth_mib(record: RunRecord) -> int:
    """MiB of device memory that each worker's stream needs in addition to the model; 0 if it did not grow.

    All that was held, which is known to fit: of a reservation in use nothing can be given back, so what does not fit
    into it fails where the allocator's own segments would have stalled. With several devices, the maximum: all
    workers reserve the same amount.
    """
    return max((_growth_mib(record, known) for known in by_device(record).values()), default=0)


def _growth_mib(record: RunRecord, known: Mapping[str, Any]) -> int:
    held = int(known["reserved_peak_bytes"]) - int(known["reserved_start_bytes"])
    workers = max(int(known.get("workers", len(np.unique(record.batches["worker"])))), 1)
    return math.ceil(max(held, 0) / workers / _MIB / _STEP_MIB) * _STEP_MIB


def room_bytes(known: Mapping[str, Any]) -> int:
    """Bytes of a device that the process could use: what it held plus what was free, within its limit.

    :param known: a value of :func:`by_device`.
    """
    room = known["reserved_end_bytes"] + known["left_bytes"]
    return int(min(room, known["share"] * known["total_bytes"]))


def not_in_effect(record: RunRecord, conf: str) -> list[str]:
    """Names of the settings in ``PYTORCH_ALLOC_CONF`` that the allocator does not report."""
    reported: Mapping[str, Any] = facts(record).get("settings", {})
    text = read_conf(str(reported.get("PYTORCH_ALLOC_CONF") or reported.get("PYTORCH_CUDA_ALLOC_CONF") or ""))
    return [name for name, value in read_conf(conf).items() if not _has(reported, text, name, value)]


def _has(reported: Mapping[str, Any], text: Mapping[str, str], name: str, value: str) -> bool:
    if name == "expandable_segments" and name in reported:
        return bool(reported[name]) == (value == "True")
    if name == "max_split_size_mb" and "max_split_size" in reported:
        return int(reported["max_split_size"]) == int(value) * _MIB
    if name == "garbage_collection_threshold" and name in reported:
        return math.isclose(float(reported[name]), float(value), rel_tol=1e-6)
    return text.get(name) == value
