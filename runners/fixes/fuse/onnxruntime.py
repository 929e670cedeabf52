"""``fuse.onnxruntime``: the model converted to ONNX and run by ONNX Runtime."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.fuse.converted_model import conversion_obstacle, converted
from latfix.runners.fixes.shared.model_facts import COMPUTE


def _obstacle(context: Context) -> str:
    return conversion_obstacle(context, "onnxruntime", ("default",))


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"backend": "onnxruntime"}


def _verify(applied: Applied) -> Verified:
    return converted(applied, "onnxruntime")


FIX = Fix(
    id="fuse.onnxruntime",
    title="run the model with ONNX Runtime",
    treats=COMPUTE,
    relief=0.15,
    compute=0.95,
    risk="a later start by the conversion; the original stays in memory beside it, for batches that it does not fit",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
