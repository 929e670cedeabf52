"""``fuse.onnxruntime``: the model converted to ONNX and run by ONNX Runtime."""

from __future__ import annotations

from latfix.runners.fixes.fix import Fix
from latfix.runners.fixes.fuse.converted_model import CONVERTING_S, converted, convertible, reads_file
from latfix.runners.fixes.shared.conditions import need
from latfix.runners.fixes.shared.model_facts import COMPUTE

FIX = Fix(
    id="fuse.onnxruntime",
    title="run the model with ONNX Runtime",
    treats=COMPUTE,
    relief=0.15,
    compute=0.95,
    risk="the service starts later, by the conversion; the original stays in memory for batches that do not fit",
    changes_outputs=True,
    making_s=CONVERTING_S,
    needs=(
        need(lambda context: not reads_file(context), "ONNX Runtime runs the file already"),
        *convertible("onnxruntime", ("default",)),
    ),
    sets={"backend": "onnxruntime"},
    verify=lambda applied: converted(applied, "onnxruntime"),
)
