"""The memory history of torch's CUDA allocator: its stalls, and the setting that would have avoided them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from latfix.cause_catalogue import CATALOGUE
from latfix.formatting import LATENCY_KEYS, count, counted, from_ns, significant
from latfix.profilers.allocator_lab.compare_policies import SETTINGS, compare, fragmentation
from latfix.profilers.allocator_lab.torch_caching import known_settings
from latfix.profilers.allocator_lab.torch_snapshot import is_snapshot, read_snapshot
from latfix.profilers.allocator_lab.trace import AllocationTrace, Stall
from latfix.profilers.recordings.reader import Reader, ReadOptions, Recorded
from latfix.results.diagnosis import CauseSummary, Diagnosis, Source, UnitLedger
from latfix.results.fragmentation import Fragmentation

_SHOWN = 20
_FIXES = ("memory.device_allocator", "memory.limit")
#: Without a stall, the models get this multiple of the memory that the recording held.
_AMPLE = 4


def _read(recorded: Recorded, options: ReadOptions) -> Diagnosis:
    del options
    trace = read_snapshot(recorded.path)
    result = _compared(trace)
    cause = _cause(trace, result)
    allocations = sum(not event.is_free for event in trace.events)
    failures = sum(stall.is_failure for stall in trace.stalls)
    unknown = dict.fromkeys(LATENCY_KEYS, math.nan)
    return Diagnosis(
        workload=recorded.path.name,
        device=f"device {trace.device}",
        requests={"ok": allocations, "error": failures, "timeout": None, "shed": None},
        latency_ms=unknown,
        verdict=cause.cause if cause is not None else "steady",
        sentence=_sentence(trace, result),
        percentile=math.nan,
        causes=() if cause is None else (cause,),
        reference_gap_ms=math.nan,
        queue_closure_ms=math.nan,
        notes=tuple(_notes(trace, result)),
        source=Source(
            kind=READER.kind,
            path=str(recorded.path),
            unit="allocation",
            read={
                "allocations": allocations,
                "stalls": len(trace.stalls),
                "device calls": trace.recorded["device_allocs"] + trace.recorded["device_frees"],
                "held at most, GB": round(trace.recorded["peak_reserved"] / 1e9, 2),
                "in use at most, GB": round(trace.peak_bytes / 1e9, 2),
                "setting": trace.setting or "torch's defaults",
            },
        ),
        slowest=tuple(
            _unit(stall, "" if cause is None else cause.cause)
            for stall in sorted(trace.stalls, key=lambda stall: -stall.lasted_us)[:_SHOWN]
        ),
    )


#: Keys of a snapshot, one of which is near its start. Other pickles are models.
_KEYS = (b"segments", b"device_traces")

READER = Reader(
    kind="memory",
    reads="torch's memory history (torch.cuda.memory._dump_snapshot)",
    knows=lambda recorded: is_snapshot(recorded.head) and any(key in recorded.head for key in _KEYS),
    read=_read,
)


def _compared(trace: AllocationTrace) -> Fragmentation:
    """The recording through the models: with the memory it held if it stalled, else with ample room."""
    held = max(trace.recorded["peak_reserved"], trace.peak_bytes, 1)
    room = held if trace.stalls else _AMPLE * held
    current = known_settings(trace.setting)
    names = (current, *(each for each in SETTINGS if each != current))
    return fragmentation(trace, room, compare(trace, room, names))


def _cause(trace: AllocationTrace, result: Fragmentation) -> CauseSummary | None:
    """The stalls' cause: ``memory.fragmentation`` if the memory given back was large enough, but in pieces."""
    if not trace.stalls:
        return None
    in_pieces = any(stall.is_retry and stall.freed >= stall.size for stall in trace.stalls)
    cause = "memory.fragmentation" if in_pieces else "memory.allocator"
    lasted = sum(stall.lasted_us for stall in trace.stalls) / 1e3
    return CauseSummary(
        cause=cause,
        tail_ms=lasted,
        tail_share=math.nan,
        own_ms=lasted,
        propagated_ms=math.nan,
        ci95_ms=(math.nan, math.nan),
        named=True,
        evidence_class=CATALOGUE[cause].evidence_class,
        requests=len(trace.stalls),
        evidence=f"{_stalls(trace)}; {result.answer}",
        whatif_ms={},
        fixes=_FIXES,
    )


def _stalls(trace: AllocationTrace) -> str:
    lasted = from_ns(1e3 * sum(stall.lasted_us for stall in trace.stalls))
    failures = sum(stall.is_failure for stall in trace.stalls)
    failed = f", {count(failures)} of them without success" if failures else ""
    return (
        f"{counted(len(trace.stalls), 'stall')}{failed}: the program waited while cached memory was given back, at "
        f"least {lasted} in total"
    )


def _sentence(trace: AllocationTrace, result: Fragmentation) -> str:
    if trace.stalls:
        return f"{_stalls(trace)}. {result.answer}"
    calls = trace.recorded["device_allocs"] + trace.recorded["device_frees"]
    return f"No allocation stalled; the history holds {count(calls)} memory calls to the device."


def _notes(trace: AllocationTrace, result: Fragmentation) -> Iterator[str]:
    yield (
        "A memory history has no call durations: percentiles are unknown, and a stall lasts from the first segment "
        "given back to the new one."
    )
    if not trace.stalls:
        first, *others = result.policies
        best = min((each for each in others if each.setting), key=lambda each: each.device_allocs, default=None)
        if best is not None and best.device_allocs < first.device_allocs:
            yield (
                f"Each new segment is a call to the device: in the models {count(first.device_allocs)} with "
                f"{first.policy}, {count(best.device_allocs)} with {best.setting}."
            )


def _unit(stall: Stall, cause: str) -> UnitLedger:
    sizes = f"{significant(stall.size / 2**20)} MiB requested, {significant(stall.freed / 2**20)} MiB given back"
    return UnitLedger(
        id=f"{'out of memory' if stall.is_failure else 'stall'}: {sizes}",
        start_ms=stall.t_us / 1e3,
        latency_ms=stall.lasted_us / 1e3,
        causes_ms={cause: stall.lasted_us / 1e3},
    )
