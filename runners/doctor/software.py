"""Python, torch, and the packages that fixes need: which are installed, and what is impossible without the others."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.findings import costs, missing, note, ok
from latfix.runners.model_transforms.torch_compile import compiler_missing

_CONVERSION = "conversion to ONNX, the first step of fuse.onnxruntime and fuse.openvino"
_REDUCED = "quantize.int8_dynamic and quantize.fp8_dynamic on a GPU"
#: Optional packages: the last part of the finding's id, the name to install, the extra of latfix that has it, what
#: needs it, and if it is checked only on a machine with a GPU.
PARTS = (
    ("onnxruntime", "onnxruntime", "onnx", "fuse.onnxruntime and .onnx model files", False),
    ("onnx", "onnxscript", "onnx", _CONVERSION, False),
    ("openvino", "openvino", "openvino", "fuse.openvino", False),
    ("torchao", "torchao", "quantization", _REDUCED, True),
    ("tensorrt", "torch-tensorrt", "tensorrt", "fuse.tensorrt and .engine model files", True),
)


def software(torch: Mapping[str, Any], *, gpu: bool) -> Iterator[Finding]:
    """Findings about software.

    :param torch: from :func:`torch_facts`.
    :param gpu: the machine has an NVIDIA GPU.
    """
    yield _python()
    yield _torch(torch)
    yield _compiler()
    yield from (_part(*part) for *part, needs_gpu in PARTS if gpu or not needs_gpu)


def _python() -> Finding:
    lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    threads = "one thread at a time runs Python (GIL)" if lock else "threads run Python in parallel (no GIL)"
    return note("software.python", f"{platform.python_implementation()} {platform.python_version()}: {threads}")


def _torch(facts: Mapping[str, Any]) -> Finding:
    if "error" in facts:
        return missing(
            "software.torch",
            f"torch does not load: {facts['error']}",
            "nothing can be replayed",
            "pip install --force-reinstall torch",
        )
    built = f"built for CUDA {facts['built_for_cuda']}" if facts["built_for_cuda"] else "built for the CPU only"
    vectors = "" if facts["mkldnn"] else ", without oneDNN"
    if "cudnn_error" in facts:
        return costs(
            "software.torch",
            f"torch {facts['version']}, {built}, rejects the cuDNN it finds: {facts['cudnn_error']}",
            "convolutions and attention on the GPU fail",
            "remove the other cuDNN's folder from LD_LIBRARY_PATH, or pip install --force-reinstall torch with the "
            "packages it requires",
        )
    threads = f"{facts['threads']} threads per operator"
    found = f"torch {facts['version']}, {built}, vector code for {facts['cpu_capability']}{vectors}, {threads}"
    if facts["mkldnn"]:
        return ok("software.torch", found)
    slow = "int8 and bfloat16 matrix products take slow paths"
    return costs("software.torch", found, slow, "install a build of torch with oneDNN")


def _compiler() -> Finding:
    why = compiler_missing()
    if not why:
        return ok("software.compiler", "a C++ compiler for torch.compile")
    return missing(
        "software.compiler", why, "latfix optimize cannot try fuse.compile on the CPU", "sudo apt-get install g++"
    )


def _part(name: str, package: str, extra: str, gives: str) -> Finding:
    id = f"software.{name}"
    if importlib.util.find_spec(package.replace("-", "_")) is not None:
        try:
            version = " " + metadata.version(package)
        except metadata.PackageNotFoundError:
            version = ""
        return ok(id, f"{package}{version}")
    return missing(id, f"{package} is not installed", f"without it: no {gives}", f'pip install "latfix[{extra}]"')
