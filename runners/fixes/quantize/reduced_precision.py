"""What the fixes that reduce the precision share: where each can run, and the evidence that it took effect.

On a GPU the evidence is the kernels that ran in a forward pass: their names tell what they computed in
(:mod:`gpu.kernel_names`). Settings, and even the types of the weights, would say int8 of a layer whose
product torch computed in float32 because the int8 kernel does not take its shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from latfix.profilers.gpu.kernel_names import Format, is_device_kernel, matrix_formats, number_format
from latfix.runners.fixes.fix import Applied, Change, Condition, Context, Verified
from latfix.runners.fixes.fuse import compile as fuse_compile
from latfix.runners.fixes.shared.conditions import at_default, need
from latfix.runners.fixes.shared.model_facts import count, facts, made_of, python_modules, torch_runs_it
from latfix.runners.model_transforms.precision_support import Capability, unsupported
from latfix.settings import Precision

#: What it takes to compile torchao's layers on a GPU.
COMPILING_S = fuse_compile.COMPILING_S
#: As people call them.
_SAID: Mapping[Format, str] = {"bf16": "bfloat16", "fp16": "float16", "": "a format that names do not tell"}
#: Operators of the framework that multiply in eight bits: evidence where no kernel's name was recorded.
_OPERATORS: Mapping[Format, str] = {"int8": "_int_mm", "fp8": "_scaled_mm"}


def capability(context: Context) -> Capability | None:
    """Compute capability of the GPU that the baseline ran on; ``None`` on the CPU, or where it is not known."""
    found = facts(context).get("capability")
    return None if found is None else (int(found[0]), int(found[1]))


def available(precision: Precision) -> Condition:
    """Torch must run the model and hold its weights, the device and the packages must have a precision, and none may
    be chosen yet."""
    unchosen = at_default("precision", "the precision is {} already")

    def condition(context: Context) -> str:
        reason = torch_runs_it(context) or weights_in_torch(context)
        return reason or unsupported(precision, context.device, capability(context)) or unchosen(context)

    return condition


#: Weights that are not torch's parameters keep their precision.
weights_in_torch = need(
    lambda context: made_of(context).get("parameters") != 0, "the model has no torch parameters to change"
)
#: Linear layers are exchanged one by one.
own_layers = python_modules("there are no linear layers in it that could be exchanged")


def new_in_half(context: Context) -> str:
    """Most of the model's layers must not answer in 16 bits already."""
    dtypes = facts(context).get("dtypes", {})
    half, total = dtypes.get("bfloat16", 0) + dtypes.get("float16", 0), sum(dtypes.values())
    return f"{half} of {total} layers answer in 16 bits already" if total and 2 * half >= total else ""


def with_compiler(context: Context) -> str:
    """On a GPU torchao's layers must be compiled: as they come they are slower than those of the model."""
    if context.on_cpu or context.settings.compile != "off":
        return ""
    missing = fuse_compile.FIX.obstacle(context)
    return f"on a GPU it pays only compiled: {missing}" if missing else ""


def compiled_too(context: Context) -> Change:
    """On a GPU, the settings that have torchao's layers compiled, where the model is not."""
    return {} if context.on_cpu or context.settings.compile != "off" else fuse_compile.FIX.change(context)


def passes(applied: Applied) -> list[dict[str, int]]:
    """Launches of each CUDA kernel in each forward pass: those of the batches that were profiled one by one, or the
    one that was looked at. None on the CPU, or where no kernel was recorded."""
    if applied.evidence.get("device", "cpu") == "cpu":
        return []
    profiled = [row["kernels"] for row in applied.evidence.get("device_profile", ())]
    seen = [
        {name: number for name, number in kernels.items() if is_device_kernel(name)}
        for kernels in profiled or [applied.evidence.get("kernels", {})]
    ]
    return seen if any(seen) else []


def computed_in(applied: Applied, wanted: Format, dtype: str) -> Verified:
    """Whether the model computed in a format of 16 bits: by its kernels, else by its layers' answers."""
    return _by_kernels(applied, wanted) or _by_answers(applied, dtype)


def _by_answers(applied: Applied, dtype: str) -> Verified:
    # A compiled model has no modules to look at; what its graphs compute in is known from when they were compiled.
    compiled = applied.evidence.get("graph_dtypes")
    dtypes = compiled or applied.evidence.get("dtypes", {})
    found, total = dtypes.get(dtype, 0), sum(dtypes.values())
    what = "operators of the compiled graphs" if compiled else "leaf modules that ran in a forward pass"
    if not compiled and applied.evidence.get("made_of", {}).get("kind", "modules") != "modules":
        what = "answers of the model, whose layers cannot be looked at,"
    return Verified(found > 0, f"{found} of {total} {what} answered in {dtype}")


def _by_kernels(applied: Applied, wanted: Format) -> Verified | None:
    """Whether most of a model's kernels computed in the format; ``None`` where most names do not tell.

    Matrix kernels, or all kernels of a model that has none. Where some layers keep their precision, one in the
    format is enough.
    """
    seen, kernels = passes(applied), Counter[str]()
    for each in seen:
        kernels.update(each)
    what, found = "matrix kernels", matrix_formats(kernels)
    if not found:
        what, found = "kernels that tell", Counter({"": 0})
        for name, launches in kernels.items():
            if format_ := number_format(name):
                found[format_] += launches
    told = sum(number for format_, number in found.items() if format_)
    if not told or told < sum(found.values()) / 2:
        return None
    least = 1 if applied.settings.keep_precision else told / 2
    said = f"{found[wanted]} of {sum(found.values())} {what} in {_where(seen)} computed in {_SAID[wanted]}"
    return Verified(found[wanted] >= max(least, 1), said + _others(found, wanted))


def products_in(applied: Applied, wanted: Format) -> Verified:
    """Whether linear layers on a GPU were multiplied in eight bits, and not only hold such weights.

    Half of the layers with such weights must have had a kernel of the format, in each pass: which kernel multiplies
    depends on the rows of the batch.
    """
    layers = count(applied.evidence.get("weights", {}), "torchao")
    seen = passes(applied)
    formats = [matrix_formats(kernels) for kernels in seen]
    if any(formats):
        found = min(formats, key=lambda each: each[wanted])
        ran, least = found[wanted], "" if len(seen) == 1 else "at least "
        what = f"{least}{ran} of {sum(found.values())} matrix kernels in {_where(seen, each=True)}"
        said = f"{what} computed in {wanted}{_others(found, wanted)}"
    else:
        operator = _OPERATORS[wanted]
        ran = count(applied.evidence.get("kernels", {}), operator)
        said = f"no matrix kernel was recorded; {ran} calls of {operator} in a forward pass"
    return Verified(layers > 0 and ran >= max(layers / 2, 1), f"{said}; {layers} layers have {wanted} weights")


def _where(seen: Sequence[object], *, each: bool = False) -> str:
    """The passes that were counted, in words."""
    return "a forward pass" if len(seen) == 1 else f"{'each of ' if each else ''}{len(seen)} profiled batches"


def _others(found: Mapping[Format, int], wanted: Format) -> str:
    rest = [f"{number} in {_SAID.get(format_, format_)}" for format_, number in found.items() if format_ != wanted]
    return f" ({', '.join(rest)})" if rest and any(found[each] for each in found if each != wanted) else ""
