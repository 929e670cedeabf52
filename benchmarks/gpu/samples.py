"""``latfix optimize`` of a sample in its profile for a GPU: before, after, and each fix's own share.

While the first sample runs, NVML is polled from beside it, and what it was asked and answered is written down, for
tests on machines without a GPU.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.commands import LATFIX, run
from benchmarks.gpu.findings import Findings
from benchmarks.gpu.parts import BEYOND_S, SAMPLES
from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.gpu.nvml_api import LiveNvml, NvmlCalls, NvmlRefused, RecordingNvml

_DURATION_S = 6
_KEPT = ("verdict", "before", "after", "ratio", "steps", "notes")


def measure(found: Findings, name: str, deadline: float, out: Path) -> None:
    """Optimize a sample.

    :param deadline: on the clock of ``time.monotonic``.
    :param out: a folder, for ``nvml.jsonl``.
    """
    with recorded_nvml(out / "nvml.jsonl") if name == SAMPLES[0] else contextlib.nullcontext(""):
        for key, value in optimized(name, deadline).items():
            found.put(key, value)


def optimized(name: str, deadline: float) -> dict[str, Any]:
    """``latfix optimize`` of a sample in the time that is left, and what of its document this is about."""
    left = deadline - time.monotonic()
    budget = max(left - BEYOND_S, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "optimization.json"
        command = [sys.executable, "-c", LATFIX, "optimize", name, "--profile", "gpu", "--duration", str(_DURATION_S)]
        command += ["--budget", f"{budget:.0f}s", "--out", str(Path(folder) / "run"), "--json", str(file)]
        ended = run(command, left)
        result: dict[str, Any] = {"exit_code": ended.exit_code, "output": ended.output[-3000:], "budget_s": budget}
        if file.exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            result |= {key: document[key] for key in _KEPT if key in document}
    return result


@contextlib.contextmanager
def recorded_nvml(path: Path, live: Callable[[], NvmlCalls] = LiveNvml) -> Iterator[str]:
    """Poll NVML twice a second on a thread of its own, and write down what it was asked and answered.

    Yields why there is no recording; nothing where there is one.
    """
    stop = threading.Event()

    def poll(reader: Nvml) -> None:
        while not stop.wait(0.5):
            reader.read()

    with path.open("w", encoding="utf-8") as file:
        try:
            calls = RecordingNvml(live(), file)
        except (NvmlRefused, ImportError) as error:
            print(f"NVML is not recorded: {error}")
            yield str(error)
            return
        thread = threading.Thread(target=poll, args=(Nvml(calls, 0),), daemon=True)
        thread.start()
        try:
            yield ""
        finally:
            stop.set()
            thread.join()
            calls.close()
