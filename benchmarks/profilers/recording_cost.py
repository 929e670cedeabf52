"""Cost of recording on the request's thread: the same calls bare and recorded, in turns.

    python -m benchmarks.profilers.recording_cost --out benchmarks/results/recording_cost.json

`bare` is the plain call, `recorded` the same call with :class:`latfix.record`, `middleware` a one-line ASGI
application without and with :class:`latfix.RecordMiddleware`. Blocks of calls take turns in one process while the
writer thread writes, with a pause between calls as between requests. Cost is a block's percentile less that of the
neighboring bare block, in microseconds, median over blocks. The ratio is that of the whole call to a bare one of
`--work` microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

import latfix
from benchmarks.result_file import write_result

#: Percentiles of the cost.
_KEYS = {"p50": 50, "p99": 99}


def _work(work_us: float) -> Callable[[], None]:
    def work() -> None:
        end = time.perf_counter_ns() + work_us * 1e3
        while time.perf_counter_ns() < end:
            pass

    return work


def _asgi(work: Callable[[], None]) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        work()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return application


async def _nothing(*_: Any) -> Any:
    return {}


def _timed(call: Callable[[], object], calls: int, pause_s: float) -> list[int]:
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
        if pause_s:
            time.sleep(pause_s)
    return times


async def _timed_async(call: Callable[[], Awaitable[object]], calls: int, pause_s: float) -> list[int]:
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        await call()
        times.append(time.perf_counter_ns() - start)
        if pause_s:
            await asyncio.sleep(pause_s)
    return times


def measure(blocks: int, calls: int, work_us: float, pause_s: float) -> dict[str, dict[str, float]]:
    """For each way of recording: cost at percentiles in microseconds, and the ratio of medians to a bare call."""
    work = _work(work_us)
    with tempfile.TemporaryDirectory() as folder:
        recorded = latfix.record(folder)(work)
        scope = {"type": "http", "path": "/", "headers": [(b"content-length", b"7")]}
        plain = _asgi(work)
        middleware = latfix.RecordMiddleware(plain, folder)
        loop = asyncio.new_event_loop()

        def served(application: Any) -> list[int]:
            return loop.run_until_complete(
                _timed_async(lambda: application(scope, _nothing, _nothing), calls, pause_s)
            )

        arms: dict[str, tuple[Callable[[], list[int]], Callable[[], list[int]]]] = {
            "record": (lambda: _timed(work, calls, pause_s), lambda: _timed(recorded, calls, pause_s)),
            "middleware": (lambda: served(plain), lambda: served(middleware)),
        }
        found: dict[str, list[tuple[Any, Any]]] = {name: [] for name in arms}
        for block in range(blocks):
            for name, pair in arms.items():
                turns = pair if block % 2 == 0 else pair[::-1]
                first, second = (np.percentile(arm(), list(_KEYS.values())) for arm in turns)
                found[name].append((first, second) if block % 2 == 0 else (second, first))
        loop.close()
    return {name: _summary(np.array(pairs)) for name, pairs in found.items()}


def _summary(pairs: Any) -> dict[str, float]:
    cost = np.median(pairs[:, 1] - pairs[:, 0], axis=0) / 1e3
    bare, recorded = np.median(pairs, axis=0)[:, 0] / 1e3
    return {
        **{f"cost_{key}_us": round(float(each), 2) for key, each in zip(_KEYS, cost, strict=True)},
        "bare_p50_us": round(float(bare), 2),
        "recorded_p50_us": round(float(recorded), 2),
        "ratio": round(float(recorded / bare), 4),
    }


def main() -> None:
    """Measure, print, and write the results if requested."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--work", type=float, default=1000.0, help="microseconds of a bare call")
    parser.add_argument("--pause", type=float, default=0.001, help="seconds between calls")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {
        "work_us": options.work,
        "blocks": options.blocks,
        "calls": options.calls,
        **measure(options.blocks, options.calls, options.work, options.pause),
    }
    print(json.dumps(found, indent=2))
    write_result(options.out, found)


if __name__ == "__main__":
    main()
