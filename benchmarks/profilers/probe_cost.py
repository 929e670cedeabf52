"""Cost of latfix's probes for the measured service: the same requests with and without them, in turns.

    python -m benchmarks.profilers.probe_cost                          the service of `latfix init`
    python -m benchmarks.profilers.probe_cost recommender --blocks 12  another workload
    python -m benchmarks.profilers.probe_cost vision --profile gpu     in a profile, with its load

Stretches of the same traffic are replayed on one service in ABBA order: as in every recorded run, and with nothing
but the timestamps at the ends of a request: no counters of threads, process or heap, no accounts, no callback of
the garbage collector, no sampler, no probe of the interpreter lock, no segments on disk. On a GPU also without the
allocator's counters and NVML, and with only those events of a batch that are waited for. Stretches are paired
request by request. `core` is the CPU time of the process with probes less that without, over the stretch's length.
Both include the cost of accepting requests.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from benchmarks.result_file import write_result
from latfix.cli.commands.init import write_starter
from latfix.config.workload_toml import WorkloadSpec, load_spec
from latfix.profilers.probes.thread_counters import NO_ACCOUNT, NO_GROWTH
from latfix.run_record.schema import PROCESS_ACCOUNT, THREAD_ACCOUNT
from latfix.runners.gpu import async_batches as flights
from latfix.runners.gpu.worker_streams import EventPool, Lane
from latfix.runners.replay.recorded_replay import RecordedReplay
from latfix.runners.replay.run_session import Replay, prepare_folder
from latfix.runners.replay.runner_main import machine
from latfix.runners.service.loaded_service import Service
from latfix.statistics.bootstrap_ratio import arm_ratios
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.schedule import Traffic
from latfix.traffic.synthesize import FeatureSpec, Synthesis, synthesize
from latfix.traffic.transforms import repeat, scale_time, slice_time

_KEYS = ("mean", "p50", "p95", "p99")
_UNTIMED_S = 2.0
_EMPTY = (0,) * len((*THREAD_ACCOUNT, *PROCESS_ACCOUNT))

Floats = npt.NDArray[np.float64]


class _NoCounters:
    """Replaces a thread's counters."""

    reads = 0
    has_run_delay = True

    def snapshot(self) -> tuple[int, ...]:
        return NO_ACCOUNT

    def wake(self) -> tuple[tuple[int, ...], int]:
        return NO_ACCOUNT, 0

    def close(self) -> None:
        """Nothing is open."""


class _NoMemory:
    """Replaces the process's memory counters."""

    reads = 0
    heap = None
    latest = NO_GROWTH

    def read(self) -> tuple[int, ...]:
        return NO_GROWTH

    begin = read

    def growth(self, *_: Any) -> tuple[int, ...]:
        return NO_GROWTH

    change = growth

    def close(self) -> None:
        """Nothing is open."""


class _Silent:
    """Replaces the parent that a runner reports to."""

    def send(self, message: dict[str, Any]) -> None:
        """Drop the report."""


class _Bare(RecordedReplay):
    """A replay without samplers."""

    @contextlib.contextmanager
    def _samplers(self, *_: Any) -> Iterator[list[Any]]:
        yield []

    def _overhead(self, *_: Any) -> dict[str, Any]:
        return {}


class _NoWriter:
    """Replaces the thread that writes segments."""

    error = None
    cpu_ns = 0

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> _NoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self) -> None:
        """Nothing was written."""


class _NoEvent:
    """Replaces an event that is not waited for."""

    def record(self, stream: Any) -> None:
        """Its time is not used."""


def _events_of(waited: Collection[int]) -> Callable[..., EventPool]:
    """Replaces a lane's pool of events: sets with events in these places only."""

    class Waited(EventPool):
        def _make(self) -> list[Any]:
            return [event if k in waited else _NoEvent() for k, event in enumerate(super()._make())]

    def events(lane: Lane, *, blocking: bool) -> EventPool:
        pools: dict[bool, EventPool] = vars(lane).setdefault("waited", {})
        if blocking not in pools:
            with lane._accelerator.using(lane.compute):
                pools[blocking] = Waited(lane._accelerator, lane.compute, blocking=blocking)
        return pools[blocking]

    return events


def _not_read(self: flights.Flights, count: int) -> None:
    """Replaces the reader of batches' events."""
    for flight in [self._landed.popleft() for _ in range(count)]:
        flight.behind = None
        self._events.give_back(flight.events)


def _nothing(*_: Any, **__: Any) -> None:
    """Replaces the writer of accounts."""


@contextlib.contextmanager
def _without_probes(*, overlap: bool) -> Iterator[None]:
    """Remove everything except the timestamps from the engine.

    :param overlap: as in the settings: streams wait for each other's events.
    """
    clocks = SimpleNamespace(
        perf_counter_ns=time.perf_counter_ns, monotonic=time.monotonic, process_time_ns=lambda: 0
    )
    waited = (flights._IN_END, flights._COMPUTE_END, flights._OUT_END) if overlap else (flights._OUT_END,)
    idle = contextlib.nullcontext(SimpleNamespace(cost_ns=0, cpu_ns=0, count=0))
    with contextlib.ExitStack() as stack:
        for name, stand_in in {
            "engine.engine.ThreadCounters": _NoCounters,
            "engine.worker.ThreadCounters": _NoCounters,
            "engine.engine.ProcessMemory": _NoMemory,
            "engine.engine.cuda_counters": lambda _: None,
            "engine.engine.time": clocks,
            "engine.worker.time": clocks,
            "engine.engine.difference": lambda *_: NO_ACCOUNT,
            "engine.worker.difference": lambda *_: NO_ACCOUNT,
            "replay.recorded_replay.GcPauses": lambda *_: idle,
            "replay.recorded_replay.LockProbe": lambda *_, **__: idle,
            "replay.recorded_replay.SegmentWriter": _NoWriter,
            "gpu.worker_streams.Lane.events": _events_of(waited),
            "gpu.async_batches.Flights._read": _not_read,
        }.items():
            stack.enter_context(mock.patch(f"latfix.runners.{name}", stand_in))
        for name in ("account", "batch_account", "batch_values"):
            stack.enter_context(mock.patch(f"latfix.profilers.probes.stage_recorder.StageRecorder.{name}", _nothing))
        yield


def main() -> None:
    """Measure, and print or write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", help="a folder or a sample; the service of latfix init by default")
    parser.add_argument("--profile", default="", help="of the workload")
    parser.add_argument("--blocks", type=int, default=24, help="stretches on each side, an even number")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a stretch")
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second of the service of latfix init")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        spec, traffic = _workload(
            Path(scratch), arguments.workload, arguments.profile, arguments.rate, arguments.seconds
        )
        result = measure(spec, traffic, Path(scratch), blocks=arguments.blocks, seconds=arguments.seconds)
    for key in _KEYS:
        low, high = result["ratio"][key]["ci95"]
        print(f"{key:>4} with probes over without: {result['ratio'][key]['value']:.4f} [{low:.4f}, {high:.4f}]")
    print(f"p50 without probes {result['p50_ms']:.3g} ms; {result['requests']} requests on each side")
    low, high = result["core"]["ci95"]
    print(f"of a core: {result['core']['value']:.2%} [{low:.2%}, {high:.2%}]")
    write_result(arguments.out, result)


def _workload(
    scratch: Path, name: str | None, profile: str, rate: float, seconds: float
) -> tuple[WorkloadSpec, Traffic]:
    if name is not None:
        spec = load_spec(name, profile=profile)
        traffic = repeat(read_traffic(spec.traffic, mapping=spec.traffic_map), spec.repeat)
        return spec, scale_time(traffic, spec.speed)
    write_starter(scratch / "example")
    spec = load_spec(str(scratch / "example"))
    lengths = FeatureSpec.parse("length=lognormal(4.3,0.8,8,512)")
    return spec, synthesize(Synthesis(kind="poisson", rate=rate, duration_s=seconds * 8), [lengths])


def measure(spec: WorkloadSpec, traffic: Traffic, scratch: Path, *, blocks: int, seconds: float) -> dict[str, Any]:
    """Replay stretches in turns; return ratios of latencies, and the share of a core."""
    service = Service(spec.folder, spec.entry, spec.settings)
    service.load()
    starts = np.arange(0, max(traffic.duration_s - seconds, seconds / 2), seconds)
    _stretch(service, slice_time(traffic, 0, _UNTIMED_S), spec, scratch / "first", probes=True)
    latency: dict[bool, list[Floats]] = {True: [], False: []}
    used: dict[bool, list[float]] = {True: [], False: []}
    for k in range(blocks):
        start = float(starts[k % len(starts)])
        part = slice_time(traffic, start, start + seconds)
        for probes in (True, False) if k % 2 == 0 else (False, True):
            latencies, core = _stretch(service, part, spec, scratch / f"{k}-{probes}", probes=probes)
            latency[probes].append(latencies)
            used[probes].append(core)
        print(f"stretch {k + 1} of {blocks}", end="\r", flush=True)
    ratios = arm_ratios(latency[False], latency[True], seed=0, keys=_KEYS)
    extra = np.array(used[True]) - np.array(used[False])
    half = 1.96 * float(extra.std(ddof=1)) / len(extra) ** 0.5
    return {
        "machine": machine(service.models.device),
        "workload": spec.name,
        "device": service.models.device,
        "requests": int(sum(len(part) for part in latency[True])),
        "blocks": blocks,
        "p50_ms": float(np.nanmedian(np.concatenate(latency[False]))) / 1e6,
        "ratio": {key: estimate.to_json() for key, estimate in ratios.items()},
        "core": {"value": float(extra.mean()), "ci95": [float(extra.mean()) - half, float(extra.mean()) + half]},
    }


def _stretch(
    service: Service, traffic: Traffic, spec: WorkloadSpec, folder: Path, *, probes: bool
) -> tuple[Floats, float]:
    """Latencies in nanoseconds in schedule order, and the cores used by the process."""
    prepare_folder(folder, Replay(spec=spec, traffic=traffic, settings=spec.settings))
    kind = RecordedReplay if probes else _Bare
    limits = {"first": False, "most_s": math.inf}
    replay = kind(service, traffic, folder, _Silent(), threading.Event(), **limits)  # type: ignore[arg-type]
    with contextlib.nullcontext() if probes else _without_probes(overlap=spec.settings.overlap):
        wall, cpu = time.perf_counter(), time.process_time()
        replay.run()
        core = (time.process_time() - cpu) / (time.perf_counter() - wall)
    recorder = replay._recorder
    end = np.asarray(recorder._columns["end"], dtype=np.float64)
    return end - recorder.scheduled_ns, core


if __name__ == "__main__":
    main()
