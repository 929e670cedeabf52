"""Latency of the live runner relative to a replay: the same arrivals, in turns, in one process.

One arm is the engine as used in a replay, the other the live runner with its rows, futures and checks. Both get the
same requests at the same times from the same replayer. Printed are ratios of latencies, live over replay, with 95 %
intervals (paired by request, over all rounds): of the service (from hand-over, live from the call, to the end of
``finish``) and of the caller (from the scheduled arrival to the answer; in a replay, to its end). Also printed is
the time of the live runner's own steps for a request without a model.

    python -m benchmarks.live.live_fidelity [WORKLOAD] [--plan plan.toml] [--rounds 6] [--seconds 8]
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.result_file import RESULTS, write_result
from latfix.config.plan import Plan, read_plan
from latfix.errors import InputError, LatfixError
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.request import Request
from latfix.runners.live.load import load_runner
from latfix.runners.live.runner import WINDOW, Runner
from latfix.runners.replay.open_loop import replay
from latfix.runners.service.loaded_service import Service
from latfix.stages import Status
from latfix.statistics.bootstrap_ratio import arm_ratios
from latfix.statistics.decision import RatioEstimate
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import slice_time

Latencies = npt.NDArray[np.float64]

_LEAD_NS = 100_000_000
KEYS = ("mean", "p50", "p90", "p95")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Latencies of one pass over the traffic in milliseconds, in its order; NaN where a request did not end ok.

    :param service: in the service.
    :param caller: for the caller.
    """

    service: Latencies
    caller: Latencies


def _send(due: npt.NDArray[np.int64], hand_over: Callable[[int], None]) -> None:
    """Replay on a separate thread, because its timer setting would be inherited by threads it starts."""
    sender = threading.Thread(target=replay, args=(due.tolist(), hand_over), name="sender")
    sender.start()
    sender.join()


def replayed(service: Service, traffic: Traffic) -> Round:
    """One pass as in a replay."""
    n = len(traffic)
    recorder = StageRecorder(n)
    engine = service.engine(recorder, traffic.request)
    engine.start()
    due = time.perf_counter_ns() + _LEAD_NS + traffic.arrival_ns
    recorder.scheduled_ns[:] = due
    _send(due, engine.submit)
    engine.drain()
    engine.shutdown()
    rows = recorder.drain_requests()
    rows.sort(order="index")
    latency = np.where(rows["status"] == Status.OK, rows["latency_ns"] / 1e6, np.nan)
    return Round(service=latency - rows["dispatch_ns"] / 1e6, caller=latency)


def live(runner: Runner, traffic: Traffic) -> Round:
    """The same pass with the live runner. The traffic must fit into its window of latest requests."""
    n = len(traffic)
    requests = [traffic.request(k) for k in range(n)]
    due = time.perf_counter_ns() + _LEAD_NS + traffic.arrival_ns
    answered = np.zeros(n, dtype=np.int64)
    futures: list[Any] = []

    def hand_over(k: int) -> None:
        future = runner.submit(requests[k])
        future.add_done_callback(lambda _: answered.__setitem__(k, time.perf_counter_ns()))
        futures.append(future)

    _send(due, hand_over)
    ok = np.array([future.exception() is None for future in futures])
    while runner.stats().in_flight:
        time.sleep(0.005)
    rows = runner.recent()[-n:]
    rows.sort(order="arrival_ns")
    return Round(
        service=np.where(ok, rows["latency_ns"] / 1e6, np.nan), caller=np.where(ok, (answered - due) / 1e6, np.nan)
    )


def compare(
    workload: str,
    *,
    plan: Plan | None,
    settings: Mapping[str, Any],
    seconds: float,
    rounds: int,
    seed: int = 0,
) -> dict[str, Any]:
    """Both arms in turns (A B, B A, …) on the first ``seconds`` of the workload's traffic.

    :raises InputError: no requests, or more than the live runner keeps.
    """
    whole = _traffic(workload)
    traffic = slice_time(whole, whole.start_s, whole.start_s + seconds)
    if not 1 <= len(traffic) <= WINDOW:
        raise InputError(f"--seconds {seconds:g}: found {len(traffic)} requests; expected 1 to {WINDOW}")
    with load_runner(workload, plan=plan, settings=settings, slots=WINDOW) as runner:
        # Both use the same model instances, warmed up once. Only one engine has work at a time.
        service = runner._service
        arms: dict[str, list[Round]] = {"replay": [], "live": []}
        for number in range(rounds):
            for arm in ("replay", "live") if number % 2 else ("live", "replay"):
                one = replayed(service, traffic) if arm == "replay" else live(runner, traffic)
                arms[arm].append(one)
    ratios = {
        what: arm_ratios(
            [getattr(one, what) for one in arms["replay"]],
            [getattr(one, what) for one in arms["live"]],
            seed=seed,
            keys=KEYS,
        )
        for what in ("service", "caller")
    }
    return {"requests": len(traffic), "rounds": rounds, "ratio": ratios, "median_ms": _medians(arms)}


def own_cost_us(runner: Runner, request: Request, n: int = 2000) -> float:
    """Median time of ``submit`` in microseconds; each answer is awaited before the next call."""
    took = []
    for _ in range(n):
        start = time.perf_counter_ns()
        future = runner.submit(request)
        took.append(time.perf_counter_ns() - start)
        future.exception()
    return float(np.median(took)) / 1e3


def _traffic(workload: str) -> Traffic:
    from latfix.config.workload_toml import load_spec

    spec = load_spec(workload)
    return read_traffic(spec.traffic, mapping=spec.traffic_map)


def _medians(arms: Mapping[str, Sequence[Round]]) -> dict[str, float]:
    return {arm: float(np.nanmedian(np.concatenate([one.service for one in rounds]))) for arm, rounds in arms.items()}


def _shown(ratio: RatioEstimate) -> str:
    return f"x{ratio.value:.3f} [{ratio.lo:.3f}, {ratio.hi:.3f}]"


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", nargs="?", default="recommender")
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS / "live_fidelity.json")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}: expected 2 at least, each arm first once")
    try:
        measure(options)
    except LatfixError as error:
        parser.error(error.message)


def measure(options: argparse.Namespace) -> None:
    """Compare, print, and write the document."""
    plan = None if options.plan is None else read_plan(options.plan)
    found = compare(
        options.workload, plan=plan, settings={"intra_op_threads": 1}, seconds=options.seconds, rounds=options.rounds
    )
    with load_runner(options.workload, plan=plan, settings={"intra_op_threads": 1}) as runner:
        cost = own_cost_us(runner, _traffic(options.workload).request(0), 200)
    print(f"{options.workload}: {found['requests']} requests, {found['rounds']} rounds; live over replay")
    for what, ratios in found["ratio"].items():
        print(f"  {what:8} " + "  ".join(f"{key} {_shown(ratio)}" for key, ratio in ratios.items()))
    print(f"  submit() takes {cost:.0f} us")
    document = {
        "what": "latency of the live runner over that of a replay's engine, on the same arrivals",
        "workload": options.workload,
        "seconds": options.seconds,
        **{key: found[key] for key in ("requests", "rounds", "median_ms")},
        "submit_us": cost,
        "ratio": {what: {key: r.to_json() for key, r in ratios.items()} for what, ratios in found["ratio"].items()},
    }
    write_result(options.out, document)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
