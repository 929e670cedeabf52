"""``fuse.compile``: ``torch.compile`` with dynamic shapes, compiled at warm-up and never in a request."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, need
from latfix.runners.fixes.shared.model_facts import (
    COMPUTE,
    SHAPES,
    computing_modules,
    not_scripted,
    quantized_layers,
    replaced,
    torch_runs_it,
)
from latfix.runners.model_transforms.torch_compile import compiler_missing

#: Seconds to compile the samples' models on a GPU.
COMPILING_S = 90.0
#: On a CPU, where a C++ compiler makes each kernel: seconds for any model, and for each module that computes. With 6
#: modules it took 20 s on a core, with 24 36 s.
_CPU_S, _MODULE_S = 15.0, 1.0
#: Minimum share of the time in compiled graphs, if the compiler breaks the model into several.
_MOST_TIME = 0.5

#: ``torch.compile`` makes no graph of a scripted model.
NOT_SCRIPTED = not_scripted("the compiler does not see into it")


def compiler_there(_: Context) -> str:
    """A compiler for the kernels must be installed."""
    return compiler_missing()


def _verify(applied: Applied) -> Verified:
    seen = applied.evidence
    at_warmup = int(seen.get("compilations", 0))
    in_run = applied.record.meta.compilations_in_run or 0
    what = f"compiled code ({int(seen.get('graphs', 0))} graphs)"
    ran = replaced(applied, what, least_time=_MOST_TIME)
    hits, misses, packed = (int(seen.get(f"compile_cache_{what}", 0)) for what in ("hits", "misses", "bypassed"))
    cached = f"{hits} of {hits + misses + packed} graphs from the cache" + (
        f", {packed} not storable, their kernels are" if packed else ""
    )
    compilations = (
        f"{at_warmup} compilations in {float(seen.get('compile_s', 0.0)):.3g} s at warm-up ({cached}), {in_run} while"
        f" requests ran; {ran.evidence}"
    )
    return Verified(at_warmup > 0 and in_run == 0 and ran.effective, compilations)


FIX = Fix(
    id="fuse.compile",
    title="compile the model with dynamic shapes, at warm-up",
    treats=COMPUTE,
    relief=0.2,
    compute=0.9,
    risk="the service starts later, by the compilation; shapes not seen at warm-up run uncompiled",
    changes_outputs=True,
    making_s=lambda baseline: _CPU_S + _MODULE_S * computing_modules(baseline),
    making_gpu_s=COMPILING_S,
    needs=(
        at_default("compile", "the model is compiled already"),
        need(
            lambda context: not (context.on_cpu and context.settings.precision == "int8_dynamic"),
            "it does not work with quantize.int8_dynamic, whose kernels the compiler cannot see into",
        ),
        lambda context: f"{found} cannot be compiled" if (found := quantized_layers(context)) else "",
        torch_runs_it,
        NOT_SCRIPTED,
        compiler_there,
    ),
    sets=lambda context: {"compile": "dynamic", "warmup_shapes": max(SHAPES, context.settings.warmup_shapes)},
    verify=_verify,
)
