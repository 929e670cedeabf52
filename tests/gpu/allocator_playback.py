"""Plays allocation traffic on torch's own allocator on a CUDA device, as the reference for the models.

``python allocator_playback.py TRACE CAPACITY`` prints a line of JSON. It runs in a separate process, as
``PYTORCH_ALLOC_CONF`` and ``PYTORCH_CUDA_ALLOC_CONF`` are read at its start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from latfix.errors import RunnerError
from latfix.profilers.allocator_lab.trace import AllocationTrace, read_trace
from latfix.profilers.gpu.alloc_conf import conf_environment

_TIMEOUT_S = 300.0
#: Longer allocations are listed separately.
_LONG_NS = 500_000


def play_apart(trace: Path, capacity: int, setting: str) -> dict[str, Any]:
    """:func:`play` in a separate process.

    :param setting: of ``PYTORCH_ALLOC_CONF``; empty for torch's defaults.
    :raises RunnerError: the process failed.
    """
    environment = {**os.environ, **conf_environment(setting)}
    command = [sys.executable, __file__, str(trace), str(capacity)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise RunnerError(f"the trace could not be played on the device: {last[0]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def play(trace: AllocationTrace, capacity: int, device: str = "cuda:0") -> dict[str, Any]:
    """Play a trace with at most ``capacity`` bytes, all on the current stream.

    :returns: ``failed``, ``retries``, ``device_allocs``, ``device_frees``, ``peak_reserved``; ``median_us`` and
        ``max_ms`` of an allocation, and ``long`` as pairs of position and milliseconds.
    """
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min((capacity + 0.5) / total, 1.0), device)
    live: dict[int, torch.Tensor] = {}
    failed, took = 0, []
    for event in trace.events:
        if event.is_free:
            live.pop(event.key, None)
            continue
        start = time.perf_counter_ns()
        try:
            live[event.key] = torch.empty(event.size, dtype=torch.uint8, device=device)
        except torch.cuda.OutOfMemoryError:
            failed += 1
        took.append(time.perf_counter_ns() - start)
    stats = torch.cuda.memory_stats(device)
    ordered = sorted(took)
    return {
        "failed": failed,
        "retries": stats["num_alloc_retries"],
        "device_allocs": stats["num_device_alloc"],
        "device_frees": stats["num_device_free"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "median_us": ordered[len(ordered) // 2] / 1e3 if ordered else 0.0,
        "max_ms": ordered[-1] / 1e6 if ordered else 0.0,
        "long": [[position, ns / 1e6] for position, ns in enumerate(took) if ns > _LONG_NS],
    }


def main() -> int:
    """Play the trace on the command line."""
    path, capacity = sys.argv[1:]
    print(json.dumps(play(read_trace(Path(path)), int(capacity))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
