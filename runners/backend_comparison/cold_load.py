"""How long a backend takes to load a file in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from latfix.errors import RunnerError
from latfix.runners.replay.runner_process import LOAD_TIMEOUT_S

if TYPE_CHECKING:
    import torch

OPENVINO = "OpenVINO"


def load_file(file: Path, backend: str, inputs: Sequence[str]) -> torch.nn.Module:
    """A module that runs a file in a backend on the CPU and takes its tensors in order.

    :param inputs: names of the tensors; names that the file lacks are skipped.
    :raises LatfixError: the backend is not installed, or rejects the file.
    """
    from latfix.runners.model_files import open_model
    from latfix.runners.model_files.formats import onnx

    if backend in (OPENVINO, onnx.BACKEND):
        return onnx.load_graph(file, inputs, openvino=backend == OPENVINO)
    return open_model(file).load("cpu")


def first_load_s(file: Path, backend: str, inputs: Sequence[str], threads: int) -> float:
    """Seconds from a process with torch imported to a model that can be called, as at the start of a service.

    In a process that has already loaded another model it takes a fraction: the backend's imports alone may take a
    second.

    :param threads: threads per operator.
    :raises RunnerError: the process died.
    """
    with tempfile.TemporaryDirectory(prefix="latfix-load-") as name:
        result = Path(name, "seconds.json")
        job = json.dumps([str(file), backend, list(inputs), threads, str(result)])
        command = [sys.executable, "-P", "-m", "latfix.runners.backend_comparison.cold_load", job]
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOAD_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise RunnerError(f"loading it took more than {error.timeout:.0f} s; stopped") from error
        if not result.is_file():
            last = last_line(ended.stderr)
            raise RunnerError(f"loading it ended with exit code {ended.returncode}; its last output: {last}")
        return float(json.loads(result.read_text(encoding="utf-8")))


def last_line(output: bytes) -> str:
    """The last line of a process's output that is not blank, shortened; ``nothing`` if there is none."""
    lines = output.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")[:200]


def main() -> None:
    """The separate process: load a file and write the duration."""
    import torch

    file, backend, inputs, threads, result = json.loads(sys.argv[1])
    torch.set_num_threads(threads)
    started = time.perf_counter()
    model = load_file(Path(file), backend, inputs)
    seconds = time.perf_counter() - started
    Path(result).write_text(json.dumps(seconds), encoding="utf-8")
    del model


if __name__ == "__main__":
    main()
