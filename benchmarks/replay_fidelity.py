"""How exactly the replayer keeps its schedule: error of each send against its scheduled time.

For each rate, in one run and in turns: the replayer with the whole engine behind it (null model, so that
nothing but latfix works), the replayer alone, and a bare loop of ``time.sleep`` until the next request is due.
Prints p50, p99 and max in milliseconds and writes ``benchmarks/results/replay_fidelity.json``.

    python benchmarks/replay_fidelity.py [--seconds 4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import datetime
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from latfix import Request, Workload
from latfix.profilers.probes.stage_recorder import EventLog, StageRecorder
from latfix.runners.engine.engine import Engine
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.replay.open_loop import give_priority_back, replay, take_priority
from latfix.runners.replay.runner_main import machine
from latfix.settings import RunnerSettings

RATES = (50, 200, 500, 1000, 5000)
Errors = npt.NDArray[np.int64]


class _Null(Workload):
    def load(self, device: str) -> torch.nn.Module:
        del device
        return torch.nn.Identity()

    def prepare(self, request: Request) -> torch.Tensor:
        del request
        return _INPUT


_INPUT = torch.zeros(4)


def schedule(rate: float, seconds: float, seed: int) -> Errors:
    """Poisson arrivals from 0.2 s in the future, absolute nanoseconds."""
    gaps = np.random.default_rng(seed).exponential(1e9 / rate, max(int(rate * seconds), 20))
    return time.perf_counter_ns() + 200_000_000 + np.cumsum(gaps).astype(np.int64)


def with_engine(due: Errors) -> Errors:
    """The whole path: stamps of the engine's own recorder, as a run records them in ``dispatch``."""
    settings = RunnerSettings(max_batch_size=64, batch_window_ms=0.0, intra_op_threads=1)
    adapter = _Null()
    recorder = StageRecorder(len(due))
    recorder.scheduled_ns[:] = due
    instance = ModelInstance(adapter, torch.nn.Identity(), "cpu", None, adapter.collate, set())
    engine = Engine(
        adapter=adapter,
        instances=[instance],
        settings=settings,
        recorder=recorder,
        events=EventLog(),
        request_of=lambda slot: Request(id=str(slot), arrival_s=0.0),
    )
    engine.start()
    take_priority()
    replay(due, engine.submit, threading.Event())
    give_priority_back()
    engine.drain()
    engine.shutdown()
    return np.asarray(recorder.handed, dtype=np.int64) - due


def alone(due: Errors) -> Errors:
    """The replayer with nothing behind it."""
    sent = np.zeros(len(due), dtype=np.int64)

    def stamp(k: int) -> None:
        sent[k] = time.perf_counter_ns()

    take_priority()
    replay(due, stamp, threading.Event())
    give_priority_back()
    return sent - due


def bare_sleep(due: Errors) -> Errors:
    """What a simple load generator does."""
    sent = np.zeros(len(due), dtype=np.int64)
    for k, at in enumerate(due.tolist()):
        left = at - time.perf_counter_ns()
        if left > 0:
            time.sleep(left / 1e9)
        sent[k] = time.perf_counter_ns()
    return sent - due


KINDS: dict[str, Callable[[Errors], Errors]] = {
    "latfix, engine behind it": with_engine,
    "latfix, replayer alone": alone,
    "bare time.sleep": bare_sleep,
}


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "replay_fidelity.json")
    options = parser.parse_args()
    rows = []
    print(f"{'rate':>6}  {'':26}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}")
    for rate in RATES:
        errors: dict[str, list[Errors]] = {kind: [] for kind in KINDS}
        for round_number in range(options.rounds):
            for kind, send in KINDS.items():
                errors[kind].append(send(schedule(rate, options.seconds, round_number)))
        for kind, parts in errors.items():
            late = np.concatenate(parts) / 1e6
            p50, p99 = (float(value) for value in np.percentile(late, [50, 99]))
            rows.append({"rate": rate, "kind": kind, "requests": len(late), "p50_ms": p50, "p99_ms": p99})
            rows[-1]["max_ms"] = float(late.max())
            rows[-1]["early"] = int(np.count_nonzero(late < 0))
            print(f"{rate:>6}  {kind:26}{p50:>10.4f}{p99:>10.4f}{late.max():>10.3f}")
    document = {
        "what": "error of each send against its scheduled time",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "rows": rows,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
