"""``fuse.onnxruntime``: the model converted to ONNX and run by ONNX Runtime."""

from __future__ import annotations

from latfix.runners.fixes.fix import Fix
from latfix.runners.fixes.fuse.converted_model import converted, convertible, converting_s, reads_file
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
    making_s=converting_s,
    needs=(
        need(lambda context: not reads_file(context.record.meta), "ONNX Runtime runs the file already"),
        *convertible("onnxruntime", ("default",)),
    ),
    sets={"backend": "onnxruntime"},
    verify=lambda applied: converted(applied, "onnxruntime"),
)
