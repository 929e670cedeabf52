"""``fuse.*``: other kernels for the model: compiled, captured, converted."""

from latfix.runners.fixes.fuse import (
    attention,
    channels_last,
    compile,
    compile_autotune,
    cudagraph,
    onnxruntime,
    openvino,
    tensorrt,
)

__all__ = [
    "attention",
    "channels_last",
    "compile",
    "compile_autotune",
    "cudagraph",
    "onnxruntime",
    "openvino",
    "tensorrt",
]
