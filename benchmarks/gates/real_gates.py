"""The small service that ``gates.py`` compares with itself, and one round of that comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from latfix.config.workload_toml import WorkloadSpec, read_spec
from latfix.run_record.dispatch_lag import is_on_time
from latfix.runners.replay.arm import Arm
from latfix.runners.replay.runner_process import OnEvent
from latfix.stages import Status
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.schedule import Traffic

Floats = npt.NDArray[np.float64]

#: The service twice, and a slower copy.
ARMS = ("one", "again", "slower")
#: Of one replay; about eight seconds.
REQUESTS = 800
_RATE = 100.0
_MEAN_MS = 2.5
_LONGER = "LATFIX_BENCH_LONGER"

#: Work is a number of steps, so a neighbor, a throttled core or a bad placement lengthens it. The steps per
#: millisecond are calibrated at the start, which makes every restart a little different, as in real services.
_ADAPTER = """
import os
import torch
from latfix import Request, Workload

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.randn(96, 96) / 10

    def forward(self, x):
        y = x[:, 1:]
        for _ in range(int(x[0, 0])):
            y = torch.tanh(y @ self.weight)
        return y

class Service(Workload):
    def load(self, device):
        self.longer = float(os.environ.get("LATFIX_BENCH_LONGER", "1"))
        return Model()

    def prepare(self, request: Request):
        x = torch.ones(97)
        x[0] = round(request.features["steps"] * self.longer)
        return x
"""


class TooLate(Exception):
    """The replayer was held up in this arm."""


def write_service(folder: Path) -> WorkloadSpec:
    """Write the workload: requests of log-normal size, Poisson arrivals, one worker."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "service.py").write_text(_ADAPTER.strip() + "\n", encoding="utf-8")
    (folder / "workload.toml").write_text(
        '[workload]\nname = "gates"\nentry = "service:Service"\ntraffic = "traffic.jsonl"\n'
        '[runner]\ndevice = "cpu"\nmax_batch_size = 1\nintra_op_threads = 1\nwarmup_requests = 20\n',
        encoding="utf-8",
    )
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(1 / _RATE, REQUESTS))
    # A step is about 12 µs on a core of 2026.
    steps = np.exp(rng.normal(0, 0.6, REQUESTS) - 0.18) * _MEAN_MS / 0.012
    rows = [
        {"arrival_s": round(float(at), 6), "steps": int(max(round(work), 1))}
        for at, work in zip(arrivals, steps, strict=True)
    ]
    (folder / "traffic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_spec(folder)


def replay_round(spec: WorkloadSpec, folder: Path, factor: float, number: int) -> dict[str, Floats]:
    """One round: the service twice and a slower copy, each in a fresh process; latencies by request.

    :param factor: on the compute time of every request of the slower copy.
    :param number: rotates the order of the three from round to round.
    :returns: ``(requests,)`` nanoseconds by arm, NaN where a request did not end ok.
    :raises TooLate: something outside held up the replayer, so the round is invalid.
    """
    traffic = read_traffic(spec.traffic)
    orders = list(permutations(ARMS))
    found: dict[str, Floats] = {}
    for name in orders[number % len(orders)]:
        longer = factor if name == "slower" else 1.0
        settings = spec.settings.with_overrides({"env": {_LONGER: repr(longer)}})
        arm = Arm(name, spec, settings, (), folder / "runner.log")
        try:
            record = arm.replay(folder / name, traffic, _unseen, seed=number)
        finally:
            arm.close()
        if not is_on_time(record):
            raise TooLate(name)
        rows = record.requests
        ok = record.measured & (rows["status"] == Status.OK)
        latency = np.full(len(traffic), np.nan)
        latency[rows["index"][ok]] = rows["latency_ns"][ok]
        found[name] = latency
    return found


@contextmanager
def _unseen(_label: str, _traffic: Traffic, _folder: Path) -> Iterator[OnEvent]:
    yield lambda _event: None
