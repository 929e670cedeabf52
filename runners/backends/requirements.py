"""Packages of other backends than torch: what is missing, and importing them."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from types import ModuleType

from latfix.config.tensorrt_requirements import installed, tensorrt_line, torch_tensorrt_line
from latfix.errors import InputError, LatfixError, RunnerError
from latfix.runners.calls.model_call import USER_ERRORS, describe

#: What each backend needs, as ``pip install`` and ``import`` know it, and the extra that brings it. The first runs
#: ONNX files, the others make them of a model.
_NEEDS: dict[str, tuple[tuple[str, ...], str]] = {
    "onnxruntime": (("onnxruntime", "onnx", "onnxscript"), "onnx"),
    "openvino": (("openvino", "onnx", "onnxscript"), "openvino"),
    "tensorrt": (("torch_tensorrt", "tensorrt"), "tensorrt"),
}
#: What each brought alone on the samples (benchmarks/results), or is guessed to bring where nobody has measured it.
_BRINGS: dict[str, str] = {
    "onnxruntime": "it took the mean latency of the sample recommender to x0.70",
    "openvino": "it took the mean latency of the sample vision to x0.63",
    "tensorrt": "it may compute in 0.7 of the time, a guess that nobody has measured",
}
#: Why a TorchScript module cannot be exported.
SCRIPTED = "torch.export takes Python modules, and TorchScript is none; give the model that it was made from"
_CHECK_DRIVER = "check the NVIDIA driver (nvidia-smi), then "


def backend_missing(backend: str, *, exports: bool = True) -> str:
    """What of a backend is not installed, what that would likely bring, and how to install it; empty where all is
    there. Imports none of it.

    :param exports: a model is to be exported for it; otherwise it reads an ONNX file that is there.
    """
    names, extra = _NEEDS.get(backend, ((), ""))
    absent = [name for name in (names if exports else names[:1]) if not installed(name)]
    if not absent:
        return ""
    # Each torch-tensorrt is built for one torch: the extra alone may bring another torch along.
    todo = torch_tensorrt_line() if backend == "tensorrt" else f"install latfix[{extra}]"
    return f"needs {' and '.join(absent)}, not installed here ({_BRINGS[backend]}); {todo}"


def torch_tensorrt() -> ModuleType:
    """The package ``torch_tensorrt``.

    :raises InputError: it is not installed; with the line that installs it.
    :raises RunnerError: it does not import.
    """
    return import_package("torch_tensorrt", user="TensorRT needs", todo=torch_tensorrt_line(), check=_CHECK_DRIVER)


def tensorrt() -> ModuleType:
    """The package ``tensorrt``; see :func:`torch_tensorrt`."""
    return import_package("tensorrt", user="TensorRT needs", todo=tensorrt_line(), check=_CHECK_DRIVER)


def import_package(
    name: str, *, user: str, todo: str = "", check: str = "", missing: type[LatfixError] = InputError
) -> ModuleType:
    """Import a package that may raise anything, where its libraries or a driver are missing.

    :param user: what needs it, with the verb, for the message.
    :param todo: the line that installs it.
    :param check: what to look at before, where it is installed and does not import.
    :param missing: raised where it, or a package that it needs, is not installed.
    :raises RunnerError: it does not import.
    """
    shown = warnings.showwarning
    try:
        # Some print what they think of their libraries, which may be where a document is to go.
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        needed = f"{user} the package {name}"
        if error.name != name:
            needed = f"the package {name} needs {error.name}"
        raise missing(f"{needed}, which is not installed; {todo}") from error
    except KeyboardInterrupt:
        raise
    except USER_ERRORS as error:
        raise RunnerError(f"the package {name} does not import ({describe(error)}); {check}{todo}") from error
    finally:
        if warnings.showwarning is not shown:  # it sends all warnings of the process to its log
            logging.captureWarnings(False)
