"""Other backends than torch: what they need, seen without loading any of them."""

from __future__ import annotations

import importlib.util

#: What each backend needs, as ``pip install`` and ``import`` know it, and the extra that brings it.
_NEEDS: dict[str, tuple[tuple[str, ...], str]] = {
    "onnxruntime": (("onnxruntime", "onnx", "onnxscript"), "onnx"),
    "openvino": (("openvino", "onnx", "onnxscript"), "openvino"),
}


def backend_missing(backend: str) -> str:
    """What of a backend is not installed, and how to install it; empty where all is there."""
    names, extra = _NEEDS.get(backend, ((), ""))
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"needs {' and '.join(absent)}, not found; install latfix[{extra}]" if absent else ""
