"""Checks if TensorRT can run here, without loading it."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from importlib import metadata
from pathlib import Path

from latfix.errors import InputError

#: The driver's own library; containers get it from their host.
_DRIVER = "libcuda.so.1"
#: The requirement of exactly this package, with its versions.
_TENSORRT = re.compile(r"tensorrt *\(?([<>=!~][^;)]*)")


def installed(module: str) -> bool:
    """True if a package is installed; it may still fail to import."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # loaded already, from a module without a spec
        return True


def driver_missing() -> str:
    """Why there is no NVIDIA driver here; empty if there is one. The driver is located, not started."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"no NVIDIA driver ({_DRIVER}) on this machine"
    return ""


def torch_tensorrt_line() -> str:
    """The command that installs the torch-tensorrt for the installed torch: each is built for one version."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "pip install torch-tensorrt"
    major, minor = (*version.split("+")[0].split("."), "0")[:2]
    return f'pip install "torch-tensorrt=={major}.{minor}.*"'


def tensorrt_line() -> str:
    """The command that installs TensorRT, in the version that the installed torch-tensorrt requires."""
    try:
        requirements = metadata.requires("torch-tensorrt") or []
    except metadata.PackageNotFoundError:
        requirements = []
    match = next(filter(None, map(_TENSORRT.match, requirements)), None)
    return "pip install tensorrt" if match is None else f'pip install "tensorrt{match.group(1).strip()}"'


def engine_obstacle() -> str:
    """Why no ``.engine`` file can run here, and what to install; empty if nothing is known to be missing."""
    if not installed("tensorrt"):
        return f"the package tensorrt, which is not installed; {tensorrt_line()}"
    missing = driver_missing()
    todo = "pass the .onnx or .pt2 file that it was built from"
    return f"an NVIDIA GPU, and there is {missing}; {todo}" if missing else ""


def check_engine_runs(file: Path) -> None:
    """Validate that a TensorRT engine can run here, before anything heavy is loaded.

    :raises InputError: the package or the driver is missing, in one line with what to do.
    """
    missing = engine_obstacle()
    if missing:
        raise InputError(f"{file}: found a TensorRT engine, which needs {missing}")
