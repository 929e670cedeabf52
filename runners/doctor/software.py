"""Python, torch, and the packages that fixes need: what is there, and what each missing one costs."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.findings import costs, missing, note, ok
from latfix.runners.model_transforms.torch_compile import compiler_missing


@dataclass(frozen=True, slots=True)
class Part:
    """A package that latfix uses where it is there.

    :param name: last part of the finding's id.
    :param module: imported as; ``package``: installed as, with latfix's extra ``extra``.
    :param gives: what cannot be done without it.
    :param needs_gpu: it is of no use on a machine without one.
    """

    name: str
    module: str
    package: str
    extra: str
    gives: str
    needs_gpu: bool = False


_CONVERSION = "conversion to ONNX, which fuse.onnxruntime and fuse.openvino start with"
_REDUCED = "quantize.int8_dynamic and quantize.fp8_dynamic on a GPU"
PARTS = (
    Part("onnxruntime", "onnxruntime", "onnxruntime", "onnx", "fuse.onnxruntime and .onnx model files"),
    Part("onnx", "onnxscript", "onnxscript", "onnx", _CONVERSION),
    Part("openvino", "openvino", "openvino", "openvino", "fuse.openvino"),
    Part("torchao", "torchao", "torchao", "quantization", _REDUCED, needs_gpu=True),
    Part("tensorrt", "torch_tensorrt", "torch-tensorrt", "tensorrt", "fuse.tensorrt and .engine model files", True),
)


def software(torch: Mapping[str, Any], *, gpu: bool) -> Iterator[Finding]:
    """Findings about software.

    :param torch: of :func:`torch_facts`.
    :param gpu: whether there is an NVIDIA GPU.
    """
    yield _python()
    yield _torch(torch)
    yield _compiler()
    yield from (_part(part) for part in PARTS if gpu or not part.needs_gpu)


def _python() -> Finding:
    lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    said = "one thread at a time runs Python" if lock else "threads run Python side by side"
    return note("software.python", f"{platform.python_implementation()} {platform.python_version()}: {said}")


def _torch(facts: Mapping[str, Any]) -> Finding:
    if "error" in facts:
        return missing(
            "software.torch",
            f"torch does not load: {facts['error']}",
            "nothing can be replayed",
            "pip install --force-reinstall torch",
        )
    built = f"built for CUDA {facts['built_for_cuda']}" if facts["built_for_cuda"] else "built for the CPU alone"
    vectors = "" if facts["mkldnn"] else ", without oneDNN"
    if "cudnn_error" in facts:
        return costs(
            "software.torch",
            f"torch {facts['version']}, {built}, does not take the cuDNN that it finds: {facts['cudnn_error']}",
            "convolutions and attention on the GPU fail",
            "start without the folder of the other cuDNN in LD_LIBRARY_PATH, or pip install --force-reinstall "
            "torch with the packages that it asks for",
        )
    threads = f"{facts['threads']} threads an operator"
    found = f"torch {facts['version']}, {built}, vectors of {facts['cpu_capability']}{vectors}, {threads}"
    if facts["mkldnn"]:
        return ok("software.torch", found)
    slow = "matrix products of int8 and bfloat16 run on slow paths"
    return costs("software.torch", found, slow, "install a build of torch with oneDNN")


def _compiler() -> Finding:
    why = compiler_missing()
    if not why:
        return ok("software.compiler", "a C++ compiler for torch.compile")
    return missing(
        "software.compiler", why, "latfix optimize cannot try fuse.compile on the CPU", "sudo apt-get install g++"
    )


def _part(part: Part) -> Finding:
    id = f"software.{part.name}"
    if importlib.util.find_spec(part.module) is not None:
        try:
            version = " " + metadata.version(part.package)
        except metadata.PackageNotFoundError:
            version = ""
        return ok(id, f"{part.package}{version}")
    lacking = f"without it: no {part.gives}"
    return missing(id, f"{part.package} is not installed", lacking, f'pip install "latfix[{part.extra}]"')
