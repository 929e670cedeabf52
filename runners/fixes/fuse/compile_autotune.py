"""``fuse.compile_autotune``: like ``fuse.compile``, but each matrix product by the fastest of several kernels."""

from __future__ import annotations

from latfix.runners.fixes.fix import Context, Fix
from latfix.runners.fixes.fuse.compile import COMPILING_S, NOT_SCRIPTED, compiler_there
from latfix.runners.fixes.fuse.compile import FIX as COMPILE
from latfix.runners.fixes.shared.conditions import on_its_device
from latfix.runners.fixes.shared.model_facts import COMPUTE, SHAPES, torch_runs_it


def _not_tuned(context: Context) -> str:
    compiled = context.settings.compile
    return "" if compiled in ("off", "dynamic") else f"the model is compiled already, with {compiled}"


FIX = Fix(
    id="fuse.compile_autotune",
    title="compile the model and time several kernels for each matrix product",
    treats=COMPUTE,
    relief=0.2,
    compute=0.85,
    risk="the service starts minutes later until its cache is warm; shapes not seen at warm-up run uncompiled",
    changes_outputs=True,
    making_gpu_s=COMPILING_S,
    needs=(
        on_its_device(
            "fuse.compile_autotune",
            "the model runs on the CPU, which has only one kernel to choose from; fuse.compile applies",
        ),
        _not_tuned,
        torch_runs_it,
        NOT_SCRIPTED,
        compiler_there,
    ),
    sets=lambda context: {"compile": "max-autotune", "warmup_shapes": max(SHAPES, context.settings.warmup_shapes)},
    verify=COMPILE.verify,
)
