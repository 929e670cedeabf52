"""Diagnoses of a device's timeline: traces of torch.profiler and exports of Nsight Systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import clipped, count, from_ns, share, shown, significant
from latfix.profilers.recordings.devices.call_and_kernel_kinds import Host
from latfix.profilers.recordings.devices.critical_path import COMPUTE, COPY, HOST
from latfix.profilers.recordings.devices.device_trace import DeviceTrace
from latfix.profilers.recordings.devices.kineto_json import is_trace, read_trace
from latfix.profilers.recordings.devices.nsys_sqlite import is_export, read_export
from latfix.profilers.recordings.devices.step_diagnosis import diagnose_steps
from latfix.profilers.recordings.devices.step_ledger import (
    Ledgers,
    StepLedger,
    last_rank,
    price,
    shortest_of_ranks,
)
from latfix.profilers.recordings.devices.steps import find_steps
from latfix.profilers.recordings.reader import Reader, ReadOptions, Recorded
from latfix.results.diagnosis import Diagnosis, Source

#: Minimum lag of the device after a step, as a share of the step, for a note.
_LAGS = 0.1
#: Minimum share of the steps' time that launches waited for a full queue, or ranks for each other, for a note.
_WORTH_NOTING = 0.01
#: Share of the waiting for other ranks that was for one of them, for a note.
_MOSTLY = 0.5


def _read_kineto(recorded: Recorded, options: ReadOptions) -> Diagnosis:
    files = [file for file in recorded.files if is_trace(file)]
    return _diagnosis("kineto", recorded, [(file, read_trace(file.path)) for file in files], options)


KINETO = Reader(
    kind="kineto",
    reads="a trace of torch.profiler (JSON or .json.gz, CUDA or HIP), or a folder of them",
    knows=lambda recorded: any(map(is_trace, recorded.files)),
    read=_read_kineto,
    takes=frozenset({"--step"}),
)
NSYS = Reader(
    kind="nsys",
    reads="an export of Nsight Systems (nsys export --type sqlite)",
    knows=is_export,
    read=lambda recorded, options: _diagnosis("nsys", recorded, [(recorded, read_export(recorded.path))], options),
    takes=frozenset({"--step"}),
)


def _diagnosis(
    kind: str, recorded: Recorded, traces: Sequence[tuple[Recorded, DeviceTrace]], options: ReadOptions
) -> Diagnosis:
    of_ranks = shortest_of_ranks([trace for _, trace in traces])
    floors: Sequence[Ints | None] = of_ranks or [None] * len(traces)
    made: list[tuple[Ledgers, list[StepLedger], str]] = []
    for (file, trace), floor in zip(traces, floors, strict=True):
        found, chosen_by = find_steps(trace, options.step, file.path)
        ledgers = Ledgers(trace, floor)
        steps = [ledgers.of(step) for step in found]
        _set_growth(ledgers, steps)
        made.append((ledgers, steps, chosen_by))
    all_steps = [step for _, steps, _ in made for step in steps]
    first = traces[0][1]
    read: Counter[str] = Counter()
    for _, trace in traces:
        read.update({name: value for name, value in trace.counts().items() if isinstance(value, int)})
    return diagnose_steps(
        all_steps,
        workload=recorded.path.name,
        device=first.device_name,
        source=Source(
            kind=kind,
            path=str(recorded.path),
            unit="step",
            read={"steps are": made[0][2], **({"files": len(traces)} if len(traces) > 1 else {}), **read},
        ),
        percentile=options.percentile,
        seed=options.seed,
        notes=[*_notes(*made[0]), *(_note_on_ranks(traces, of_ranks, all_steps) if of_ranks else ())],
        evidence=_evidence(all_steps),
        fixes=({} if any(each.pageable for each in all_steps) else {COPY: ("transfer.overlap",)})
        | ({} if any(len(trace.device) for _, trace in traces) else {HOST: ("fuse.compile",)}),
    )


def _note_on_ranks(
    traces: Sequence[tuple[Recorded, DeviceTrace]], floors: Sequence[Ints], steps: Sequence[StepLedger]
) -> Iterator[str]:
    worst, waited, total = last_rank([trace for _, trace in traces], floors)
    if total > _WORTH_NOTING * sum(each.length for each in steps) and waited > _MOSTLY * total:
        yield (
            f"{share(waited / total)} of the waiting in collectives ({from_ns(waited)}, over all ranks) was for "
            f"{traces[worst][0].path.name}, the last to arrive: diagnose that file for the cause."
        )


def _set_growth(ledgers: Ledgers, steps: Sequence[StepLedger]) -> None:
    """Divide kernel time into more work and slower work, by the kernels' prices in quiet steps."""
    lengths = np.array([each.length for each in steps])
    prices = price(ledgers, [each for each in steps if each.length <= np.median(lengths)])
    for each in steps:
        each.growth = growth = Counter(each.causes)
        if len(steps) > 1 and COMPUTE in growth:
            beyond = sum(each.kernels[key] - prices[key] * runs for key, runs in each.runs.items() if key in prices)
            growth["gpu.slowdown"] = round(beyond)
            growth["input.size"] = growth.pop(COMPUTE) - round(beyond)


def _evidence(steps: Sequence[StepLedger]) -> dict[str, str]:
    result = {}
    if before := sum(each.before for each in steps):
        result[COMPUTE] = f"{from_ns(before / len(steps))} a step of kernels that were issued before it"
    copied, took = sum(each.copied_bytes for each in steps), sum(each.causes[COPY] for each in steps)
    if copied:
        result[COPY] = f"{significant(copied / 1e6)} MB at {significant(copied / took)} GB/s"
        pageable = sum(each.pageable for each in steps)
        result[COPY] += f", {share(pageable / copied)} of them from or to pageable memory" if pageable else ""
    return result


def _notes(ledgers: Ledgers, steps: Sequence[StepLedger], chosen_by: str) -> Iterator[str]:
    trace, facts = ledgers.trace, ledgers.facts
    if len(steps) == 1:
        yield f"The recording holds one step ({chosen_by}), without another to compare it with."
    kinds = trace.host.kind
    graphs = int((kinds == Host.GRAPH_LAUNCH).sum())
    if graphs:
        inside = np.isin(facts.launch, np.flatnonzero(kinds == Host.GRAPH_LAUNCH))
        yield (
            f"{count(graphs)} graph launch{'es' if graphs > 1 else ''} ran {count(int(inside.sum()))} kernels and "
            "copies: few launches do not mean that the device waits for them."
        )
    length = sum(each.length for each in steps) / len(steps)
    held = int(facts.length[facts.blocked].sum())
    if held > _WORTH_NOTING * length * len(steps):
        yield (
            f"{count(int(facts.blocked.sum()))} launches took {from_ns(held)} because the launch queue was full: the "
            "device was the bottleneck, it did not starve."
        )
    lag = sum(each.lag for each in steps) / len(steps)
    if lag > _LAGS * length:
        busy = sum(each.device_busy for each in steps) / len(steps)
        yield (
            f"The device finished a step's work {from_ns(lag)} after the step's end ({from_ns(length)}; busy "
            f"{share(busy / length)} of it): nothing in the step waited for that, the next step may."
        )
    if trace.lacks_kernels and len(trace.device):
        yield "Kernels were launched, but none was recorded: it is unknown whether the device waited for launches."
    if trace.lacks_calls:
        yield "The recording shows no call of the runtime: it is unknown whether the host waited for the device."
    if not len(trace.device):
        yield "The recording shows no activity of a device: the causes of the host's waits are unknown."
    others = [trace.names[k] for k in dict.fromkeys(trace.ranges.name.tolist())]
    used = {each.name for each in steps}
    others = [name for name in others if name not in used][:3]
    if others and not chosen_by.startswith("--step"):
        listed = ", ".join(shown(clipped(name, 40)) for name in others)
        yield f"To use other ranges of the recording as steps, pass --step REGEX: {listed}."
    yield from trace.notes
