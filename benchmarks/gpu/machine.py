"""This machine as one line of JSON: ``python -m benchmarks.gpu.machine``."""

from __future__ import annotations

import contextlib
import json
from importlib import metadata
from typing import Any

from benchmarks.result_file import origin

_PACKAGES = ("triton", "torchao", "torch-tensorrt", "tensorrt", "nvidia-ml-py", "typer", "pytest")


def facts() -> dict[str, Any]:
    """Print if there is a CUDA device, the machine, and versions."""
    import torch

    from latfix.runners.replay.run_session import versions

    known = dict(versions())
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    cuda = torch.cuda.is_available()
    if cuda:
        try:
            cudnn = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # another version than torch was built with
            cudnn = f"refused: {' '.join(str(error).split())}"
        known |= {"cuda": str(torch.version.cuda), "cudnn": cudnn, "driver": _driver()}
    return {"cuda": cuda, **origin("cuda"), "versions": known}


def _driver() -> str:
    from latfix.profilers.gpu.nvml_api import LiveNvml, NvmlRefused

    try:
        calls = LiveNvml()
        version = str(calls.ask("SystemGetDriverVersion"))
        calls.close()
    except (NvmlRefused, ImportError) as error:
        return f"unknown: {error}"
    return version


if __name__ == "__main__":
    print(json.dumps(facts()))
