"""Reads the memory history of torch's CUDA allocator (``torch.cuda.memory._dump_snapshot``) as a trace.

The history is a ring: memory allocated before its start appears only when it is freed, or in the snapshot's live
blocks. The trace allocates such memory first.
"""

from __future__ import annotations

import math
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn

from latfix.errors import InputError
from latfix.files.decompressed import CUT_OFF, open_decompressed
from latfix.profilers.allocator_lab.trace import MOST_BYTES, AllocationTrace, Event, Stall

#: The first byte of a pickle of protocol 2 or later.
_PICKLE = b"\x80"
#: Exceptions of a pickle's opcodes or of entries in damaged or foreign data.
_DAMAGED = (EOFError, ValueError, LookupError, AttributeError, TypeError, OverflowError, MemoryError, RecursionError)
#: Frames of programs that give cached memory back themselves, in Python and in C++.
_EMPTIES = re.compile(r"empty_?cache", re.IGNORECASE)
_WANTED = "expected a file of torch.cuda.memory._dump_snapshot after torch.cuda.memory._record_memory_history()"


def is_snapshot(head: bytes) -> bool:
    """True if a file begins as a pickle."""
    return head[:1] == _PICKLE


class _PlainData(pickle.Unpickler):
    """Loads plain data only: a pickle that names a class could run any code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, but a snapshot is plain data")


def read_snapshot(path: Path) -> AllocationTrace:
    """The history of one device, the one with the longest, as a trace.

    :raises InputError: it is no snapshot, or has no history.
    """
    try:
        with open_decompressed(path) as file:
            document = _PlainData(file).load()
    except (pickle.UnpicklingError, *CUT_OFF, *_DAMAGED) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"{path}: found no readable snapshot ({reason}); {_WANTED}") from error
    traces = document.get("device_traces") if isinstance(document, Mapping) else None
    if not isinstance(traces, list) or not any(traces):
        raise InputError(f"{path}: found no history in it; {_WANTED}")
    try:
        device = max(range(len(traces)), key=lambda k: len(traces[k]))
        segments = [each for each in document.get("segments", ()) if each.get("device", device) == device]
        events, recorded = _events(traces[device], _live(segments))
        recorded["peak_reserved"] = _peak_reserved(traces[device], segments)
        setting = _setting(document)
    except _DAMAGED as error:
        reason = " ".join(repr(error).split())[:120]
        raise InputError(f"{path}: found entries of another shape ({reason}); {_WANTED}") from error
    source = f"{path.name}, device {device}"
    return AllocationTrace(
        events=events,
        source=source,
        recorded=recorded,
        setting=setting,
        device=device,
        stalls=tuple(stalls(traces[device])),
    )


def _setting(document: Mapping[str, Any]) -> str:
    """The settings of torch's allocator, as text; empty for its defaults and in older snapshots."""
    settings = document.get("allocator_settings")
    if not isinstance(settings, Mapping):
        return ""
    return str(settings.get("PYTORCH_ALLOC_CONF") or settings.get("PYTORCH_CUDA_ALLOC_CONF") or "")


def _peak_reserved(entries: Any, segments: Any) -> int:
    """The most bytes held from the device: the segments at the end, and the history backwards."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes = [signs[entry["action"]] * _bytes(entry["size"]) for entry in entries if entry["action"] in signs]
    at_end = sum(_bytes(block["size"]) for segment in segments for block in segment["blocks"])
    at_begin = at_end - sum(changes)
    # Segments taken before the ring's start and given back within it are in ``changes`` with a minus sign.
    return max(accumulate(changes, initial=max(at_begin, 0)))


def _bytes(value: Any) -> int:
    size = int(value)
    if not 0 <= size <= MOST_BYTES:
        raise ValueError("a size below 0 or above 2^50 bytes")
    return size


def _time_us(entry: Mapping[str, Any], default: float) -> float:
    time_us = float(entry.get("time_us", default))
    if not math.isfinite(time_us):
        raise ValueError(f"time_us = {time_us}")
    return time_us


def _live(segments: Any) -> dict[int, tuple[int, int]]:
    """Blocks in use at the end: size and stream by address."""
    result = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            address = block.get("address", address)
            if block["state"] == "active_allocated":
                size = _bytes(block.get("requested_size") or block["size"])
                result[int(address)] = (size, int(segment.get("stream", 0)))
            address += block["size"]
    return result


def _events(entries: Any, live: Mapping[int, tuple[int, int]]) -> tuple[list[Event], dict[str, int]]:
    # Older versions record one step of a free instead of two.
    ended = "free_completed" if any(entry["action"] == "free_completed" for entry in entries) else "free"
    before = list(_from_before(entries, live, ended))
    keys = {address: key for key, (address, _, _) in enumerate(before)}
    events = [Event(key=key, size=size, stream=stream) for key, (_, size, stream) in enumerate(before)]
    actions = Counter(entry["action"] for entry in entries)
    start = min((_time_us(entry, 0.0) for entry in entries), default=0.0)
    number = len(before)
    for entry in entries:
        action = entry["action"]
        t_us = _time_us(entry, start) - start
        if action == "alloc":
            keys[entry["addr"]] = number
            events.append(
                Event(key=number, size=_bytes(entry["size"]), stream=int(entry.get("stream", 0)), t_us=t_us)
            )
            number += 1
        elif action == ended and entry["addr"] in keys:
            events.append(Event(key=keys.pop(entry["addr"]), size=0, t_us=t_us))
    recorded = {
        "retries": sum(stall.is_retry for stall in stalls(entries)),
        "ooms": actions["oom"],
        "device_allocs": actions["segment_alloc"] + actions["segment_map"],
        "device_frees": actions["segment_free"] + actions["segment_unmap"],
    }
    return events, recorded


def stalls(entries: Any) -> Iterator[Stall]:
    """Stalls: the allocator gave segments back and then requested one from the device, its last resort.

    Segments that the program itself gave back (``torch.cuda.empty_cache``) are none.

    :param entries: one device's history in the snapshot.
    """
    begin: Mapping[str, Any] | None = None
    freed = 0
    start = min((_time_us(entry, 0.0) for entry in entries), default=0.0)
    for entry in entries:
        action = entry["action"]
        if action in ("segment_free", "segment_unmap"):
            if not any(_EMPTIES.search(str(frame["name"])) for frame in entry.get("frames") or ()):
                begin = begin or entry
                freed += _bytes(entry["size"])
        elif action in ("segment_alloc", "segment_map", "oom"):
            if begin is not None or action == "oom":
                first = _time_us(begin or entry, start) - start
                yield Stall(
                    t_us=first,
                    lasted_us=_time_us(entry, start) - start - first,
                    size=_bytes(entry.get("size", 0)),
                    freed=freed,
                    is_retry=begin is not None,
                    is_failure=action == "oom",
                )
            begin, freed = None, 0
        else:  # the program went on without a new segment
            begin, freed = None, 0


def _from_before(entries: Any, live: Mapping[int, tuple[int, int]], ended: str) -> Iterator[tuple[int, int, int]]:
    """Address, size and stream of memory allocated before the history starts.

    :param ended: the action that ends an allocation.
    """
    seen: set[int] = set()
    for entry in entries:
        action, address = entry["action"], entry.get("addr")
        if action == ended and address not in seen:
            yield address, _bytes(entry["size"]), int(entry.get("stream", 0))
        if action in ("alloc", "free_completed", "free"):
            seen.add(address)
    for address, (size, stream) in live.items():
        if address not in seen:
            yield address, size, stream
