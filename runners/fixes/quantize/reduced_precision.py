"""Shared by the fixes that reduce the precision: preconditions, and evidence that they took effect.

On a GPU the evidence is the names of the kernels that ran in a forward pass, which contain the number format
(:mod:`gpu.kernel_number_formats`). Settings, and even the types of weights, would show int8 for a layer that torch
computed in float32 because the int8 kernel does not support its shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from latfix.profilers.gpu.kernel_number_formats import Format, is_device_kernel, matrix_formats, number_format
from latfix.runners.fixes.fix import Applied, Change, Condition, Context, Verified
from latfix.runners.fixes.fuse import compile as fuse_compile
from latfix.runners.fixes.fuse.converted_model import operators_in
from latfix.runners.fixes.shared.conditions import at_default, need
from latfix.runners.fixes.shared.model_facts import (
    count,
    facts,
    made_of,
    python_modules,
    quantized_layers,
    torch_runs_it,
)
from latfix.runners.model_transforms.precision_support import Capability, unsupported
from latfix.settings import Precision

#: Seconds to compile torchao's layers on a GPU.
COMPILING_S = fuse_compile.COMPILING_S
#: Names for messages.
_FORMAT_NAMES: Mapping[Format, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "tf32": "TF32",
    "": "an unknown format",
}
#: Torch's operators that multiply in eight bits: the evidence if no kernel names were recorded.
_OPERATORS: Mapping[Format, str] = {"int8": "_int_mm", "fp8": "_scaled_mm"}
#: A precision whose layers alone are this much slower is not worth a trial.
_SLOWER = 1.1


def capability(context: Context) -> Capability | None:
    """Compute capability of the baseline's GPU; ``None`` on the CPU, or if unknown."""
    found = facts(context).get("capability")
    return None if found is None else (int(found[0]), int(found[1]))


def available(precision: Precision) -> Condition:
    """Torch must run the model and hold its weights, device and packages must support the precision, and no other one
    may be set."""
    unchosen = at_default("precision", "the precision is {} already")

    def condition(context: Context) -> str:
        reason = torch_runs_it(context) or weights_in_torch(context)
        return reason or unsupported(precision, context.device, capability(context)) or unchosen(context)

    return condition


def fast_layers(precision: str, *rivals: str) -> Condition:
    """A precision must be faster by the layers' own times, if they were measured.

    :param rivals: other precisions, with less risk, that it must also beat.
    """

    def condition(context: Context) -> str:
        modules, times = (facts(context).get(name, {}) for name in ("modules", "linear_ms"))
        if modules and not count(modules, "nn.modules.linear.Linear"):
            return "no nn.Linear ran in a forward pass"
        if not {"default", precision, *rivals} <= set(times):
            return ""
        least = min(("default", *rivals), key=lambda name: times[name])
        if times[precision] < _SLOWER * times[least]:
            return ""
        rival, layers = "without it" if least == "default" else f"in {least}", "linear layers of a median request"
        return f"the {layers} take {times[precision]:.3g} ms in it, {times[least]:.3g} ms {rival}"

    return condition


#: Weights that are not torch's parameters keep their precision.
weights_in_torch = need(
    lambda context: made_of(context).get("parameters") != 0, "the model has no torch parameters to change"
)
#: Linear layers are replaced one by one.
own_layers = python_modules("it has no linear layers that could be replaced")


def float32_layers(context: Context) -> str:
    """On the CPU, some linear layer must have float32 weights."""
    weights = facts(context).get("weights", {})
    if not context.on_cpu or not weights or "float32" in weights:
        return ""
    return f"its kernel on the CPU takes float32, and the linear layers are in {', '.join(sorted(weights))}"


def unquantized(context: Context) -> str:
    """No layer may be of torch's quantized ones, which take float32 only."""
    found = quantized_layers(context)
    return f"{found} take only float32" if found else ""


def new_in_half(context: Context) -> str:
    """At least half of the model's layers must not return 16-bit outputs already."""
    dtypes = facts(context).get("dtypes", {})
    half, total = dtypes.get("bfloat16", 0) + dtypes.get("float16", 0), sum(dtypes.values())
    return f"{half} of {total} layers return 16-bit outputs already" if total and 2 * half >= total else ""


def with_compiler(context: Context) -> str:
    """On a GPU torchao's layers must be compiled: otherwise they are slower than the model's own."""
    if context.on_cpu or context.settings.compile != "off":
        return ""
    missing = fuse_compile.FIX.obstacle(context)
    return f"on a GPU it pays only compiled: {missing}" if missing else ""


def compiled_too(context: Context) -> Change:
    """On a GPU, the settings that compile torchao's layers, unless the model is compiled already."""
    return {} if context.on_cpu or context.settings.compile != "off" else fuse_compile.FIX.change(context)


def passes(applied: Applied) -> list[dict[str, int]]:
    """Launches of each CUDA kernel by forward pass: of all profiled batches, or of the one pass in the evidence.

    Empty on the CPU, or if no kernel was recorded.
    """
    if applied.evidence.get("device", "cpu") == "cpu":
        return []
    profiled = [row["kernels"] for row in applied.evidence.get("device_profile", ())]
    seen = [
        {name: number for name, number in kernels.items() if is_device_kernel(name)}
        for kernels in profiled or [applied.evidence.get("kernels", {})]
    ]
    return seen if any(seen) else []


def computed_in(applied: Applied, wanted: Format, dtype: str) -> Verified:
    """Effective if the model computed in a 16-bit format: by its kernels, its operators, or its layers' outputs."""
    if verified := by_kernels(applied, wanted):
        return verified
    found, total = operators_in(applied, wanted)
    if total:
        return Verified(found > 0, f"{found} of {total} operators of the converted model computed in {dtype}")
    # A compiled model runs no modules; the types in its graphs were recorded during compilation.
    compiled = applied.evidence.get("graph_dtypes")
    dtypes = compiled or applied.evidence.get("dtypes", {})
    found, total = dtypes.get(dtype, 0), sum(dtypes.values())
    what = "operators of the compiled graphs" if compiled else "leaf modules that ran in a forward pass"
    if not compiled and applied.evidence.get("made_of", {}).get("kind", "modules") != "modules":
        what = "outputs of the model, whose layers cannot be seen,"
    return Verified(found > 0, f"{found} of {total} {what} had type {dtype}")


def by_kernels(applied: Applied, wanted: Format) -> Verified | None:
    """Effective if most of a model's kernels computed in the format; ``None`` if most names do not show it.

    Matrix kernels, or all kernels of a model that has none. If some layers keep their precision, one kernel in the
    format is enough.
    """
    seen, kernels = passes(applied), Counter[str]()
    for each in seen:
        kernels.update(each)
    what, found = "matrix kernels", matrix_formats(kernels)
    if not found:
        what, found = "kernels with a known format", Counter({"": 0})
        for name, launches in kernels.items():
            if format_ := number_format(name):
                found[format_] += launches
    known = sum(number for format_, number in found.items() if format_)
    if not known or known < sum(found.values()) / 2:
        return None
    least = 1 if applied.settings.keep_precision else known / 2
    text = f"{found[wanted]} of {sum(found.values())} {what} in {_where(seen)} computed in {_FORMAT_NAMES[wanted]}"
    return Verified(found[wanted] >= max(least, 1), text + _others(found, wanted))


def products_in(applied: Applied, wanted: Format) -> Verified:
    """Effective if linear layers on a GPU multiplied in eight bits, rather than only have such weights.

    At least half of the layers with such weights must have run a kernel of the format, in each pass: the choice of
    the kernel depends on the rows of the batch.
    """
    layers = count(applied.evidence.get("weights", {}), "torchao")
    seen = passes(applied)
    formats = [matrix_formats(kernels) for kernels in seen]
    if any(formats):
        found = min(formats, key=lambda each: each[wanted])
        ran, least = found[wanted], "" if len(seen) == 1 else "at least "
        what = f"{least}{ran} of {sum(found.values())} matrix kernels in {_where(seen, each=True)}"
        text = f"{what} computed in {wanted}{_others(found, wanted)}"
    else:
        operator = _OPERATORS[wanted]
        ran = count(applied.evidence.get("kernels", {}), operator)
        text = f"no matrix kernel was recorded; {ran} calls of {operator} in a forward pass"
    return Verified(layers > 0 and ran >= max(layers / 2, 1), f"{text}; {layers} layers have {wanted} weights")


def _where(seen: Sequence[object], *, each: bool = False) -> str:
    """The counted passes, in words."""
    return "a forward pass" if len(seen) == 1 else f"{'each of ' if each else ''}{len(seen)} profiled batches"


def _others(found: Mapping[Format, int], wanted: Format) -> str:
    others = {format_: number for format_, number in found.items() if format_ != wanted}
    text = ", ".join(f"{number} in {_FORMAT_NAMES.get(format_, format_)}" for format_, number in others.items())
    return f" ({text})" if any(others.values()) else ""
