"""The packages of TensorRT, imported when they are asked for. Without libraries or driver they raise all sorts."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from types import ModuleType

from latfix.config.tensorrt_requirements import tensorrt_line, torch_tensorrt_line
from latfix.errors import InputError, RunnerError
from latfix.runners.calls.model_call import USER_ERRORS, describe


def torch_tensorrt() -> ModuleType:
    """The package ``torch_tensorrt``.

    :raises InputError: it is not installed; with the line that installs it.
    :raises RunnerError: it is, and does not import.
    """
    return _imported("torch_tensorrt", torch_tensorrt_line())


def tensorrt() -> ModuleType:
    """The package ``tensorrt``; see :func:`torch_tensorrt`."""
    return _imported("tensorrt", tensorrt_line())


def _imported(name: str, todo: str) -> ModuleType:
    shown = warnings.showwarning
    try:
        # It prints what it thinks of its libraries, which may be where a document is to go.
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise InputError(f"TensorRT needs the package {name}, which is not installed; {todo}") from error
        raise InputError(f"the package {name} needs {error.name}, which is not installed; {todo}") from error
    except USER_ERRORS as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise RunnerError(
            f"the package {name} does not import ({describe(error)}); check the NVIDIA driver (nvidia-smi),"
            f" then {todo}"
        ) from error
    finally:
        if warnings.showwarning is not shown:  # it sends all warnings of the process to its log
            logging.captureWarnings(False)
