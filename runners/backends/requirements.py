"""Packages of other backends than torch: which are missing, and importing them."""

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

#: The packages that each backend needs, and the extra that installs them. The first runs ONNX files, the others
#: export them.
_NEEDS: dict[str, tuple[tuple[str, ...], str]] = {
    "onnxruntime": (("onnxruntime", "onnx", "onnxscript"), "onnx"),
    "openvino": (("openvino", "onnx", "onnxscript"), "openvino"),
    "tensorrt": (("torch_tensorrt", "tensorrt"), "tensorrt"),
}
#: The gain of each backend alone on the samples (benchmarks/results).
_GAIN: dict[str, str] = {
    "onnxruntime": "it took the mean latency of the sample recommender to x0.70",
    "openvino": "it took the mean latency of the sample vision to x0.63",
    "tensorrt": "it may compute in 0.7 of the time; a guess, not measured",
}
#: Why a TorchScript module cannot be exported.
SCRIPTED = "torch.export takes Python modules, not TorchScript; give the model that it was made from"
_CHECK_DRIVER = "check the NVIDIA driver (nvidia-smi), then "


def backend_missing(backend: str, *, exports: bool = True) -> str:
    """The missing packages of a backend, its likely gain, and how to install it; empty if all are installed.

    Imports nothing.

    :param exports: a model will be exported for the backend; otherwise it reads an existing ONNX file.
    """
    names, extra = _NEEDS.get(backend, ((), ""))
    absent = [name for name in (names if exports else names[:1]) if not installed(name)]
    if not absent:
        return ""
    # Each torch-tensorrt is built for one torch: the extra alone may install another torch.
    todo = torch_tensorrt_line() if backend == "tensorrt" else f"install latfix[{extra}]"
    return f"needs {' and '.join(absent)}, not installed here ({_GAIN[backend]}); {todo}"


def require_backend(backend: str, *, exports: bool = True) -> None:
    """Check that a backend is installed; see :func:`backend_missing`.

    :raises InputError: it is not.
    """
    if missing := backend_missing(backend, exports=exports):
        raise InputError(f"backend = {backend!r}: {missing}")


def torch_tensorrt() -> ModuleType:
    """The package ``torch_tensorrt``.

    :raises InputError: it is not installed; with the command that installs it.
    :raises RunnerError: it does not import.
    """
    return import_package("torch_tensorrt", user="TensorRT needs", todo=torch_tensorrt_line(), check=_CHECK_DRIVER)


def tensorrt() -> ModuleType:
    """The package ``tensorrt``; see :func:`torch_tensorrt`."""
    return import_package("tensorrt", user="TensorRT needs", todo=tensorrt_line(), check=_CHECK_DRIVER)


def import_package(
    name: str, *, user: str, todo: str = "", check: str = "", missing: type[LatfixError] = InputError
) -> ModuleType:
    """Import a package that may raise any exception if its libraries or a driver are missing.

    :param user: what needs it, with the verb, for the message.
    :param todo: the command that installs it.
    :param check: what to check first if it is installed but does not import.
    :param missing: raised if it, or a package that it needs, is not installed.
    :raises RunnerError: it does not import.
    """
    shown = warnings.showwarning
    try:
        # Some packages print while they are imported, and standard output may carry a document.
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
        if warnings.showwarning is not shown:  # the package redirected all warnings of the process to its log
            logging.captureWarnings(False)
