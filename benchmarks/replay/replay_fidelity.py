"""How exactly the replayer keeps its schedule: the error of each send against its scheduled time.

For each rate, in one run and in turns: the replayer with the whole engine and a null model, the same as a thread of
the service's interpreter, the replayer alone, a loop of ``time.sleep`` until the next request is due, and MLPerf
LoadGen with the same engine if ``mlcommons-loadgen`` is installed. All but the loop send from a thread with real-time
priority, if the system allows it. Four conditions: idle, a spinning process on each core, a ``prepare`` that holds
the interpreter lock for 8 ms, and the last together with two processes per core that spin in bursts of 45 ms. Prints
p50, p99 and max in milliseconds and the CPU time per request in the service and in the replayer's process, and writes
``benchmarks/results/replay_fidelity.json``.

    python -m benchmarks.replay.replay_fidelity [--seconds 4] [--rounds 3] [--loadgen FOLDER]

With LoadGen and these values it takes about 21 minutes; the number of rounds and the duration are printed first.
LoadGen's error is the time from a query's schedule to the return of its callback, from its trace, without the first
query.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.result_file import RESULTS, write_result
from latfix import Request, Workload
from latfix.profilers.probes.stage_recorder import EventLog, StageRecorder
from latfix.profilers.probes.thread_counters import ThreadCounters
from latfix.runners.engine.engine import Engine
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.host.cpu_quota import usable_cores
from latfix.runners.replay.open_loop import give_priority_back, replay, take_priority
from latfix.runners.replay.replayer_process import ReplayerProcess
from latfix.runners.selftest.faults.background import Phases
from latfix.runners.selftest.faults.cpu_hogs import Hogs, cores
from latfix.settings import RunnerSettings

Errors = npt.NDArray[np.int64]
_HELD_NS = 8_000_000
_LOADGEN = "mlperf_loadgen"


class Sent(NamedTuple):
    """Errors of one round in nanoseconds, and CPU nanoseconds per request of the service and of the replayer."""

    errors: Errors
    service_ns: float = 0.0
    replayer_ns: float = 0.0


class _Null(Workload):
    """:param held: summed in one call in each ``prepare``, which keeps the interpreter lock during the call."""

    def __init__(self, held: list[int]) -> None:
        self._held = held

    def load(self, device: str) -> torch.nn.Module:
        del device
        return torch.nn.Identity()

    def prepare(self, request: Request) -> torch.Tensor:
        del request
        if self._held:
            sum(self._held)
        return _INPUT


_INPUT = torch.zeros(4)


def held_for(ns: int) -> list[int]:
    """Numbers whose sum takes this long."""
    some = list(range(1_000_000))
    took = []
    for _ in range(5):
        start = time.perf_counter_ns()
        sum(some)
        took.append(time.perf_counter_ns() - start)
    return list(range(round(len(some) * ns / min(took))))


@contextlib.contextmanager
def hogs() -> Iterator[None]:
    """Run a process that spins on each core, and ends if this one is killed."""
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
    busy = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(round(usable_cores()))]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


@contextlib.contextmanager
def bursts() -> Iterator[None]:
    """Run two processes on each core that spin in bursts, each at its own times."""
    phases = [Phases(on_s=0.045, period_s=0.5, seed=seed) for seed in range(2 * len(cores()))]
    with tempfile.TemporaryDirectory() as folder, Hogs(phases, Path(folder) / "bursts.jsonl") as busy:
        busy.start()
        yield


def schedule(rate: float, seconds: float, seed: int) -> Errors:
    """Poisson arrivals from 0.2 s in the future, absolute nanoseconds."""
    return time.perf_counter_ns() + 200_000_000 + np.cumsum(gaps(rate, seconds, seed))


def gaps(rate: float, seconds: float, seed: int) -> Errors:
    """Nanoseconds between arrivals."""
    return np.random.default_rng(seed).exponential(1e9 / rate, max(int(rate * seconds), 20)).astype(np.int64)


def _engine(slots: int, held: list[int]) -> Engine:
    settings = RunnerSettings(max_batch_size=64, batch_window_ms=0.0, intra_op_threads=1)
    adapter = _Null(held)
    instance = ModelInstance(adapter, torch.nn.Identity(), "cpu", None, adapter.collate, set())
    return Engine(
        adapter=adapter,
        instances=[instance],
        settings=settings,
        recorder=StageRecorder(slots),
        events=EventLog(),
        request_of=lambda slot: Request(id=str(slot), arrival_s=0.0),
    )


@contextlib.contextmanager
def _served(engine: Engine) -> Iterator[None]:
    engine.start()
    take_priority()
    yield
    give_priority_back()
    engine.drain()
    engine.shutdown()


def own_process(rate: float, seconds: float, seed: int, held: list[int]) -> Sent:
    """The whole path of a recorded replay: arrivals in the ring, accepted by the engine."""
    count = len(gaps(rate, seconds, seed))
    engine = _engine(count, held)
    with ReplayerProcess(count) as replayer:
        replayer.ready()
        cpu = time.process_time_ns()
        with _served(engine):
            engine.recorder.scheduled_ns[:] = due = schedule(rate, seconds, seed)
            replayer.begin(due)
            counters = ThreadCounters()
            replayer.take_in(engine.submit, threading.Event(), lambda: counters.wake()[1])
            counters.close()
        errors = np.array(replayer.arrived, dtype=np.int64) - due
        return Sent(errors, (time.process_time_ns() - cpu) / count, replayer.cpu_ns / count)


def own_thread(rate: float, seconds: float, seed: int, held: list[int]) -> Sent:
    """The replayer in the service's interpreter."""
    count = len(gaps(rate, seconds, seed))
    engine = _engine(count, held)
    cpu = time.process_time_ns()
    with _served(engine):
        engine.recorder.scheduled_ns[:] = due = schedule(rate, seconds, seed)
        replay(due.tolist(), engine.submit)
    return Sent(np.asarray(engine.recorder.handed, dtype=np.int64) - due, (time.process_time_ns() - cpu) / count)


def alone(rate: float, seconds: float, seed: int, held: list[int]) -> Sent:
    """The replayer without a service."""
    del held
    with ReplayerProcess(len(gaps(rate, seconds, seed))) as replayer:
        replayer.ready()
        due = schedule(rate, seconds, seed)
        replayer.begin(due)
        replayer.take_in(lambda *_: None, threading.Event(), int)
        return Sent(np.array(replayer.arrived, dtype=np.int64) - due, 0.0, replayer.cpu_ns / len(due))


def bare_sleep(rate: float, seconds: float, seed: int, held: list[int]) -> Sent:
    """A simple load generator."""
    del held
    due = schedule(rate, seconds, seed)
    sent = np.zeros(len(due), dtype=np.int64)
    for k, at in enumerate(due.tolist()):
        left = at - time.perf_counter_ns()
        if left > 0:
            time.sleep(left / 1e9)
        sent[k] = time.perf_counter_ns()
    return Sent(sent - due)


def loadgen(rate: float, seconds: float, seed: int, held: list[int]) -> Sent:
    """MLPerf LoadGen's server scenario, in the service's process as usual, with the engine."""
    import mlperf_loadgen as lg  # type: ignore[import-not-found, unused-ignore]

    count = max(int(rate * seconds), 20)
    engine = _engine(4 * count + 1000, held)
    next_slot = iter(range(engine.recorder.slots))

    def issue(samples: list[Any]) -> None:
        lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0) for sample in samples])
        for _ in samples:
            slot = next(next_slot)
            engine.recorder.scheduled_ns[slot] = time.perf_counter_ns()
            engine.submit(slot)

    settings = lg.TestSettings()
    settings.scenario, settings.mode = lg.TestScenario.Server, lg.TestMode.PerformanceOnly
    settings.server_target_qps, settings.server_target_latency_ns = rate, 10**12
    settings.min_duration_ms = settings.max_duration_ms = int(seconds * 1000)
    settings.min_query_count, settings.max_query_count = 1, count
    settings.schedule_rng_seed = seed
    with tempfile.TemporaryDirectory() as folder:
        log = lg.LogSettings()
        log.enable_trace, log.log_output.outdir = True, folder
        sut, library = lg.ConstructSUT(issue, lambda: None), lg.ConstructQSL(1024, 1024, _ignored, _ignored)
        cpu = time.process_time_ns()
        engine.start()
        take_priority()  # LoadGen sends from the calling thread
        lg.StartTestWithLogSettings(sut, library, settings, log)
        give_priority_back()
        engine.drain()
        engine.shutdown()
        cpu = time.process_time_ns() - cpu
        lg.DestroyQSL(library)
        lg.DestroySUT(sut)
        trace = (Path(folder) / "mlperf_log_trace.json").read_text(encoding="utf-8")
    ended = np.array(re.findall(r'"complete_ns":(\d+)', trace), dtype=np.int64)
    return Sent(ended[1:], cpu / max(len(ended), 1))


def _ignored(_: object) -> None:
    """The samples that LoadGen would have loaded."""


KINDS: dict[str, Callable[[float, float, int, list[int]], Sent]] = {
    "latfix, engine behind it": own_process,
    "latfix, as a thread": own_thread,
    "latfix, replayer alone": alone,
    "bare time.sleep": bare_sleep,
    "MLPerf LoadGen": loadgen,
}
#: Rates by condition. With a lock held for 8 ms, more than 100 requests per second would only queue up.
CONDITIONS = {
    "idle": (50, 200, 500, 1000, 5000, 20000),
    "hogs": (50, 500, 5000),
    "lock": (20, 50, 100),
    "lock+bursts": (20, 50, 100),
}
COMPANY: dict[str, Callable[[], AbstractContextManager[None]]] = {"hogs": hogs, "lock+bursts": bursts}
#: Time of a round beyond its traffic: starting processes, and calibrating.
_OVERHEAD_S = 1.5


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--conditions", nargs="*", choices=tuple(CONDITIONS), default=tuple(CONDITIONS))
    parser.add_argument("--loadgen", help="the folder that contains mlcommons-loadgen, if not installed here")
    parser.add_argument("--out", type=Path, default=RESULTS / "replay_fidelity.json")
    options = parser.parse_args()
    if options.loadgen:
        sys.path.append(str(Path(options.loadgen).resolve()))
    kinds = {name: send for name, send in KINDS.items() if send is not loadgen or importlib.util.find_spec(_LOADGEN)}
    planned = sum(len(CONDITIONS[each]) for each in options.conditions) * len(kinds) * options.rounds
    print(f"{planned} rounds, about {planned * (options.seconds + _OVERHEAD_S) / 60:.0f} min", flush=True)
    priority = take_priority()
    give_priority_back()
    rows = []
    print(f"{'':11}{'rate':>6}  {'':26}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}{'µs service':>12}{'replayer':>10}")
    for condition in options.conditions:
        held = held_for(_HELD_NS) if condition.startswith("lock") else []
        with COMPANY.get(condition, contextlib.nullcontext)():
            for rate in CONDITIONS[condition]:
                rounds: dict[str, list[Sent]] = {kind: [] for kind in kinds}
                for seed in range(options.rounds):
                    for kind, send in kinds.items():
                        rounds[kind].append(send(rate, options.seconds, seed, held))
                rows += [_row(condition, rate, kind, parts) for kind, parts in rounds.items()]
    document = {
        "what": "error of each send against its scheduled time",
        "priority": priority,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "held_ms": _HELD_NS / 1e6,
        "rows": rows,
    }
    write_result(options.out, document)
    print(f"written to {options.out}")


def _row(condition: str, rate: float, kind: str, parts: list[Sent]) -> dict[str, Any]:
    late = np.concatenate([part.errors for part in parts]) / 1e6
    p50, p99 = (float(value) for value in np.percentile(late, [50, 99]))
    service, replayer = (float(np.median([part[k] for part in parts])) / 1e3 for k in (1, 2))
    figures = f"{p50:>10.4f}{p99:>10.4f}{late.max():>10.3f}{service:>12.1f}{replayer:>10.1f}"
    print(f"{condition:11}{rate:>6}  {kind:26}{figures}", flush=True)
    return {
        "condition": condition,
        "rate": rate,
        "kind": kind,
        "requests": len(late),
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": float(late.max()),
        "early": int(np.count_nonzero(late < 0)),
        "service_us": service,
        "replayer_us": replayer,
    }


if __name__ == "__main__":
    main()
