"""How long a backend takes to load a file for the first time: in a process that has loaded nothing before."""

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
    """A module that runs a file in a backend, on the CPU, and takes its tensors in order.

    :param inputs: their names; those that the file does not have are ones that it does not need.
    :raises LatfixError: the backend is not installed, or refuses the file.
    """
    from latfix.runners.model_files import open_model
    from latfix.runners.model_files.formats import onnx

    if backend in (OPENVINO, onnx.BACKEND):
        return onnx.load_graph(file, inputs, openvino=backend == OPENVINO)
    return open_model(file).load("cpu")


def first_load_s(file: Path, backend: str, inputs: Sequence[str], threads: int) -> float:
    """Seconds from a process that has imported torch to a model that can be called.

    What a service waits for when it starts. In a process that has loaded another model already it is a fraction: the
    backend's own imports alone may take a second.

    :param threads: of one operator.
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
            raise RunnerError(f"loading it had not ended after {error.timeout:.0f} s; gave up") from error
        if not result.is_file():
            lines = ended.stderr.decode("utf-8", "replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            raise RunnerError(f"loading it ended with exit code {ended.returncode}; the last it said: {last[:200]}")
        return float(json.loads(result.read_text(encoding="utf-8")))


def main() -> None:
    """In the process of its own: load a file, and write what it took."""
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
