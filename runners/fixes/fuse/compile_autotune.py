"""``fuse.compile_autotune``: compiled as by ``fuse.compile``, each product by the fastest of several kernels."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Context, Fix
from latfix.runners.fixes.fuse.compile import FIX as COMPILE
from latfix.runners.fixes.shared.model_facts import COMPUTE, on_cpu, other_backend
from latfix.runners.model_transforms.torch_compile import compiler_missing

_SHAPES = 8


def _obstacle(context: Context) -> str:
    if on_cpu(context):
        return "the model runs on the CPU, where there is one kernel to choose from; fuse.compile applies"
    if context.settings.compile not in ("off", "dynamic"):
        return f"the model is compiled already, with {context.settings.compile}"
    return other_backend(context) or compiler_missing()


def _change(context: Context) -> dict[str, Any]:
    return {"compile": "max-autotune", "warmup_shapes": max(_SHAPES, context.settings.warmup_shapes)}


FIX = Fix(
    id="fuse.compile_autotune",
    title="compile the model and time several kernels for each matrix product",
    treats=COMPUTE,
    relief=0.2,
    compute=0.85,
    risk="a start that is later by minutes, until its cache is warm; shapes not seen at warm-up run uncompiled",
    changes_outputs=True,
    obstacle=_obstacle,
    change=_change,
    verify=COMPILE.verify,
)
