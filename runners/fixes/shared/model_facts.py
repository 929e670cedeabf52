"""Facts of the model before any fix, and evidence that something else ran in place of its operators.

The baseline's record holds them as ``model`` (:meth:`latfix.runners.service.loaded_service.Service.facts`); without
them no fix is ruled out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfix.formatting import percent
from latfix.run_record.run_meta import RunMeta
from latfix.runners.fixes.fix import Applied, Condition, Context, Verified
from latfix.runners.fixes.shared.conditions import at_default, need

#: Causes that faster compute treats: their milliseconds are entirely or partly the model's.
COMPUTE = ("input.size", "batching.size", "batching.padding", "traffic.burst", "traffic.overload")
#: Minimum number of warm-up shapes for a model that is compiled or captured by shape.
SHAPES = 8
#: Minimum share of batches that a replacement of the model's operators must have run.
_MOST_BATCHES = 0.95

#: Modules of a model of which it is not known how many compute (a graph): those of a small text encoder.
_MODULES = 70

_OTHER_BACKEND = at_default("backend", "{} runs the model instead of torch's operators")


def torch_runs_it(context: Context) -> str:
    """Torch's own operators must run the model."""
    return _OTHER_BACKEND(context) or own_operators(context)


def computing_modules(baseline: RunMeta) -> int:
    """How many modules computed in a forward pass: converting and compiling take longer the more there are."""
    return sum(baseline.model.get("modules", {}).values()) or _MODULES


def own_operators(context: Context) -> str:
    """The model of the adapter or the file must consist of torch's operators."""
    made, seen = made_of(context), facts(context).get("kernels")
    if runtime := made.get("runtime"):
        return f"the model has no torch parameters: its operators run in {runtime}"
    # A function of tensors has no parameters either, but its operators were seen.
    nothing = seen is not None and not seen and made.get("parameters") == 0
    return "the model is no torch module: no operator of torch ran in a forward pass" if nothing else ""


def python_modules(what: str) -> Condition:
    """The model must be made of modules in Python, not be a graph (TorchScript, torch.export).

    :param what: why, as the end of a sentence about a graph.
    """

    def condition(context: Context) -> str:
        kind = made_of(context).get("kind", "modules")
        return "" if kind == "modules" else f"the model is a graph ({kind}): {what}"

    return condition


def not_scripted(what: str) -> Condition:
    """The model must not be TorchScript.

    :param what: why, as the end of a sentence about it.
    """
    return need(lambda context: made_of(context).get("kind") != "TorchScript", f"the model is TorchScript: {what}")


def made_of(context: Context) -> Mapping[str, Any]:
    """:func:`latfix.runners.service.model_makeup.makeup` of the model before any fix; empty if unknown."""
    found: Mapping[str, Any] = facts(context).get("made_of", {})
    return found


def facts(context: Context) -> Mapping[str, Any]:
    """Evidence of the service before any fix; empty if it was not recorded."""
    return context.record.meta.model


def count(seen: Mapping[str, int], part: str) -> int:
    """How often something ran whose name contains ``part``."""
    return sum(number for name, number in seen.items() if part in name)


def quantized_layers(context: Context) -> str:
    """Which of torch's own quantized layers the model has, as the beginning of a sentence; empty if none.

    Their weights are packed for a kernel that takes float32, and that no exporter or compiler sees into.
    """
    ran = count(facts(context).get("modules", {}), "ao.nn.quantized")
    return f"its quantized layers, {ran} of which ran," if ran else ""


def ran_batches(applied: Applied, what: str) -> tuple[bool, str]:
    """True if something ran nearly all batches in place of the model's own operators, and the counts in words."""
    seen = applied.evidence
    batches, ran = int(seen.get("batches_run", 0)), int(seen.get("batches_replaced", 0))
    return batches > 0 and ran >= _MOST_BATCHES * batches, f"{what} ran in {ran} of {batches} batches"


def replaced(applied: Applied, what: str, *, least_time: float = 0.0) -> Verified:
    """Effective if something ran in place of the model's own operators, in the workers' threads, in the replay.

    :param least_time: minimum share of the batches' compute time, if it may replace only parts. On a GPU, where the
        host's clock sees only launches, it must have run about as often in a batch as at warm-up.
    """
    ran, counts = ran_batches(applied, what)
    seen = applied.evidence
    if least_time and str(seen.get("device", "cpu")) != "cpu":
        usual = float(seen.get("warmup_least_runs", 0.0))
        found = int(seen.get("replacing_runs", 0)) / max(int(seen.get("batches_run", 0)), 1)
        evidence = f"{counts}, {found:.3g} times in each; at warm-up at least {usual:.3g} times"
        return Verified(ran and usual > 0 and found >= _MOST_BATCHES * usual, evidence)
    share = float(seen.get("replaced_share", 0.0))
    return Verified(ran and share >= least_time, f"{counts}, {percent(share)} of their compute time")
