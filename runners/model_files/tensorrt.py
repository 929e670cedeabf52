"""``.engine``: a TensorRT engine. It is told apart from other files; running it needs a GPU and an extra."""

from __future__ import annotations

from pathlib import Path

from latfix.errors import RunnerError
from latfix.runners.model_files.opened import OpenedModel


def open_file(file: Path) -> OpenedModel:
    """Refuse an engine, and say what would run it.

    :raises RunnerError: always; this version has no backend for it.
    """
    raise RunnerError(
        f"{file}: found a TensorRT engine, which runs on a GPU with latfix[tensorrt] only, and not in this version; "
        "give the .onnx or .pt2 file that it was built from"
    )
