"""Preconditions and evidence of the fixes that convert the model for another backend."""

from __future__ import annotations

from latfix.cause_catalogue import PREMISES
from latfix.formatting import counted
from latfix.run_record.run_meta import RunMeta
from latfix.runners.backends.requirements import SCRIPTED, backend_missing
from latfix.runners.fixes.fix import Applied, Condition, Context, Verified
from latfix.runners.fixes.shared.conditions import at_default, on_its_device
from latfix.runners.fixes.shared.model_facts import (
    computing_modules,
    facts,
    not_scripted,
    own_operators,
    quantized_layers,
    replaced,
)

#: Seconds to convert any model to ONNX, load it, and compare its answers, and for each module that computes: 4 with 6
#: modules, 9 with 60, 10 with 73.
_CONVERTING_S, _MODULE_S = 4.0, 0.1
#: Seconds to load a file that the backend reads itself, and compare its answers.
_READING_S = 2.0
#: Settings that only torch knows; they must be at their defaults.
_OF_TORCH = ("compile", "memory_format", "attention")


def reads_file(baseline: RunMeta) -> bool:
    """True if the model is an ONNX file, which ONNX Runtime runs and OpenVINO reads without a conversion."""
    made = baseline.model.get("made_of", {})
    return bool(made.get("file")) and made.get("runtime") == "ONNX Runtime"


def converting_s(baseline: RunMeta) -> float:
    """Expected seconds until the converted model, or the file itself, serves."""
    return _READING_S if reads_file(baseline) else _CONVERTING_S + _MODULE_S * computing_modules(baseline)


def _exportable(context: Context) -> str:
    """The model must be exportable."""
    in_parts = "its forward is a Python loop around parts (compile_parts), which cannot be exported as a whole"
    obstacle = own_operators(context) or not_scripted(SCRIPTED)(context)
    if found := quantized_layers(context):
        return f"{found} cannot be exported"
    return obstacle or (in_parts if facts(context).get("compile_parts") else "")


def convertible(backend: str, precisions: tuple[str, ...]) -> tuple[Condition, ...]:
    """The model must be convertible for ``backend``.

    :param precisions: that the backend supports.
    """

    fix = f"fuse.{backend}"

    def same_precision(context: Context) -> str:
        settings = context.settings
        if settings.precision not in precisions:
            return f"the precision is {settings.precision}, which the backend does not support here"
        if settings.keep_precision and settings.precision != "default":
            return "some layers keep their precision (keep_precision), which only torch knows"
        return ""

    return (
        at_default("backend", "{} runs the model already"),
        on_its_device(fix, f"the model runs on {'a GPU' if PREMISES[fix].device == 'cpu' else 'the CPU'}"),
        same_precision,
        *(at_default(name, f"{name} is {{}} already, which only torch supports") for name in _OF_TORCH),
        lambda context: "" if reads_file(context.record.meta) else _exportable(context),
        lambda context: backend_missing(backend, exports=not reads_file(context.record.meta)),
    )


def operators_in(applied: Applied, wanted: str) -> tuple[int, int]:
    """Operators of the converted model that computed in a number format, and all whose format is known."""
    known = [each for one in applied.evidence.get("conversions", []) for each in one.get("precisions", {}).items()]
    return sum(number for name, number in known if wanted in name.lower()), sum(number for _, number in known)


def converted(applied: Applied, backend: str) -> Verified:
    """Effective if the backend ran the batches of the replay; with the result of the conversion."""
    conversions = applied.evidence.get("conversions", [])
    ran = replaced(applied, backend)
    if not conversions:
        return Verified(False, f"no model was converted; {ran.evidence}")
    one = conversions[0]
    source = "found in the cache" if one["cached"] else "exported"
    source = f"{one['file']} itself, compared" if one.get("file") else f"{source} and loaded"
    conversion = (
        f"{one['backend']} on {counted(int(one['threads']), 'thread')}, {source} in {one['seconds']:.3g} s, at most"
        f" {one['deviation']:.2g} from the original over {one['batches']} batches; {ran.evidence}"
    )
    return Verified(ran.effective and str(one["backend"]).startswith(backend), conversion)
