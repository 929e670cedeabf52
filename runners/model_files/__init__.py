"""Model files as workloads: one module per backend, and one adapter over all of them.

A backend's ``open_file`` returns an :class:`opened_model.OpenedModel`: the inputs that the file takes, and a module
that runs it. The code that turns requests into those inputs is shared.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from latfix.config.model_file_kind import check_model_file

if TYPE_CHECKING:
    from latfix.runners.model_files.opened_model import OpenedModel


def open_model(file: Path) -> OpenedModel:
    """Open a model file with the backend for its format.

    :raises InputError: the file is damaged, is no model file, or its backend refuses it.
    :raises RunnerError: its backend is not installed, or does not run here.
    """
    kind = check_model_file(file)
    if kind == "torch.export":
        from latfix.runners.model_files.formats.pt2 import open_file
    elif kind == "TorchScript":
        from latfix.runners.model_files.formats.torchscript import open_file
    elif kind == "ONNX":
        from latfix.runners.model_files.formats.onnx import open_file
    else:
        from latfix.runners.model_files.formats.engine_file import open_file
    return open_file(file)
