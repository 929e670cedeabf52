"""A batch's work on the device, kernel by kernel, from a separate profile; timed requests are never profiled.

Between a batch's first and last operator, the device works or waits. It waits for the host to enqueue the next
operator (``launch``), or because the host had waited for the device (``sync``): for a value read on the host
(``.item()``), a copy from pageable memory, or a synchronization. Which of the two follows from when the next operator
was enqueued, and from the host's last call before.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfix.run_record.process_facts import DeviceWork
from latfix.runners.calls.model_call import call_model

if TYPE_CHECKING:
    from latfix.runners.engine.worker import ModelInstance

#: Marks the model's call in a profile.
RANGE = "latfix.compute"
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
#: Calls in which the host may wait for the device; copies with pinned memory do not.
_WAITS = ("Synchronize", "cudaMemcpy", "cuMemcpy")
#: Number of kernels that are named, the most frequent first.
_NAMED = 200
#: Text of a warning about a wait; torch's debug mode also warns about its own limits.
_WARNING = "called a synchronizing"
#: Maximum number of reported places in the code.
_PLACES = 8


def work_of(events: Sequence[Mapping[str, Any]], *, size: int = 0, elements: int = 0) -> DeviceWork | None:
    """The device's work in the model's call, from a profile.

    :param events: from ``torch.profiler``'s exported trace: times ``ts`` and ``dur`` in microseconds; ``correlation``
        links calls to the device work they started.
    :returns: ``None`` if nothing ran on a device.
    """
    done = [event for event in events if event.get("ph") == "X"]
    inside = _range(done)
    calls = [event for event in done if event.get("cat") in _CALLS and inside[0] <= event["ts"] <= inside[1]]
    issued = {_tie(call): call for call in calls if _tie(call) is not None}
    work = sorted(
        (event for event in done if event.get("cat") in _ON_DEVICE and _tie(event) in issued), key=lambda e: e["ts"]
    )
    if not work:
        return None
    waits = sorted((call for call in calls if _waits(call, work)), key=_end)
    busy = launch = sync = 0.0
    until = float(work[0]["ts"])
    for each in work:
        begin, gap = float(each["ts"]), float(each["ts"]) - until
        call = issued[_tie(each)]
        if gap > 0 and _put_in(call) > until:
            # The stream had run empty. It is a wait if the host had waited for the last work before.
            blocked = any(until <= _end(wait) <= call["ts"] for wait in waits)
            sync, launch = (sync + gap, launch) if blocked else (sync, launch + gap)
        busy += max(_end(each) - max(begin, until), 0.0)
        until = max(until, _end(each))
    kernels = Counter(str(each["name"]) for each in work if each["cat"] == "kernel")
    copies: Counter[str] = Counter()
    for each in work:
        if each["cat"] == "gpu_memcpy":
            copies[str(each["name"]).removeprefix("Memcpy ")] += int(each.get("args", {}).get("bytes", 0))
    return DeviceWork(
        size=size,
        elements=elements,
        span_ns=round((until - work[0]["ts"]) * 1e3),
        busy_ns=round(busy * 1e3),
        launch_ns=round(launch * 1e3),
        sync_ns=round(sync * 1e3),
        launches=len(work),
        waits=_stops(calls, waits),
        copies=dict(copies),
        kernels=dict(kernels.most_common(_NAMED)),
    )


def profile_batch(instance: ModelInstance, batch: Any, *, size: int, elements: int) -> DeviceWork | None:
    """Run a batch under the profiler like a request; ``None`` if nothing ran on a device.

    The profiled call is repeated: the first one sets up the profiler, memory and libraries.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    assert instance.accelerator is not None, "profiles need a device"
    with instance.guard(), instance.working() as stream, warnings.catch_warnings():
        # Events are read from the exported trace; making Python objects of them would take seconds.
        warnings.filterwarnings("ignore", message=".*clears events at the end of each cycle")
        inputs = instance.on_device(batch)
        call_model(instance.model, inputs)
        stream.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            call_model(instance.model, inputs)
            stream.synchronize()
            with record_function(RANGE):
                call_model(instance.model, inputs)
            stream.synchronize()
    with tempfile.TemporaryDirectory(prefix="latfix-profile-") as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return work_of(events, size=size, elements=elements)


def waits_in(instance: ModelInstance, batch: Any) -> list[str]:
    """Places in the model's code where the host waits for the device, as ``file:line``, in order."""
    accelerator = instance.accelerator
    assert accelerator is not None, "only on a device"
    with instance.guard(), instance.working() as stream:
        inputs = instance.on_device(batch)
        call_model(instance.model, inputs)  # waits in the first call only do not happen in requests
        stream.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with accelerator.warn_on_waits():
                call_model(instance.model, inputs)
        stream.synchronize()
    places = (f"{Path(each.filename).name}:{each.lineno}" for each in caught if _WARNING in str(each.message))
    return list(dict.fromkeys(places))[:_PLACES]


def _range(events: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Begin and end of the host's call of the model in microseconds; unbounded if it is not marked."""
    marked = [each for each in events if each.get("name") == RANGE and each.get("cat") == "user_annotation"]
    if not marked:
        return float("-inf"), float("inf")
    return float(marked[0]["ts"]), _end(marked[0])


def _waits(call: Mapping[str, Any], work: Sequence[Mapping[str, Any]]) -> bool:
    """True if the host waited for the device in a call."""
    name = str(call["name"])
    if not any(part in name for part in _WAITS):
        return False
    if "Synchronize" in name:
        return True
    # A copy: the host waited if the call returned after the copy had ended.
    own = next((each for each in work if _tie(each) == _tie(call)), None)
    return own is not None and _end(call) >= _end(own)


def _put_in(call: Mapping[str, Any]) -> float:
    """When a call's work was in the stream: a launch at its end; a copy, which may wait for itself, at its start."""
    return _end(call) if "Launch" in str(call["name"]) else float(call["ts"])


def _stops(calls: Sequence[Mapping[str, Any]], waits: Sequence[Mapping[str, Any]]) -> int:
    """How often the host waited; consecutive waits (a copy and its end) are one."""
    waiting = {id(wait) for wait in waits}
    in_order = sorted(calls, key=lambda call: float(call["ts"]))
    return sum(waited for waited, _ in groupby(id(call) in waiting for call in in_order))


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) + float(event.get("dur", 0.0))


def _tie(event: Mapping[str, Any]) -> int | None:
    found = event.get("args", {}).get("correlation")
    return int(found) if found else None
