"""Other backends than torch: what they need, seen without loading any of them."""

from __future__ import annotations

from latfix.config.tensorrt_requirements import installed, torch_tensorrt_line

#: What each backend needs, as ``pip install`` and ``import`` know it, and the extra that brings it.
_NEEDS: dict[str, tuple[tuple[str, ...], str]] = {
    "onnxruntime": (("onnxruntime", "onnx", "onnxscript"), "onnx"),
    "openvino": (("openvino", "onnx", "onnxscript"), "openvino"),
    "tensorrt": (("torch_tensorrt", "tensorrt"), "tensorrt"),
}


def backend_missing(backend: str) -> str:
    """What of a backend is not installed, and how to install it; empty where all is there."""
    names, extra = _NEEDS.get(backend, ((), ""))
    absent = [name for name in names if not installed(name)]
    if not absent:
        return ""
    # Each torch-tensorrt is built for one torch: the extra alone may bring another torch along.
    todo = torch_tensorrt_line() if backend == "tensorrt" else f"install latfix[{extra}]"
    return f"needs {' and '.join(absent)}, not installed here; {todo}"
