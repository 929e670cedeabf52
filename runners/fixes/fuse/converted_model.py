"""What the fixes that hand the model to another backend have in common."""

from __future__ import annotations

from latfix.runners.backends.requirements import backend_missing
from latfix.runners.fixes.fix import Applied, Context, Verified
from latfix.runners.fixes.shared.model_facts import facts, on_cpu, replaced


def conversion_obstacle(context: Context, backend: str, precisions: tuple[str, ...], *, on: str = "cpu") -> str:
    """Why the model cannot be handed to ``backend``.

    :param precisions: those that it can be asked for.
    :param on: the kind of device that it runs on, ``cpu`` or ``cuda``.
    """
    settings = context.settings
    if settings.backend != "torch":
        return f"{settings.backend} runs the model already"
    if on_cpu(context) != (on == "cpu"):
        return "the model runs on the CPU" if on_cpu(context) else "the model runs on a GPU"
    if settings.precision not in precisions:
        return f"the precision is {settings.precision}, which it has no counterpart of here"
    if settings.keep_precision and settings.precision != "default":
        return "some layers keep their precision (keep_precision), which only torch knows"
    for name, neutral in (("compile", "off"), ("memory_format", "default"), ("attention", "default")):
        if getattr(settings, name) != neutral:
            return f"{name} is {getattr(settings, name)} already, which is torch's own"
    if facts(context).get("compile_parts"):
        return "its forward is a Python loop around parts (compile_parts), which no exporter can take whole"
    return backend_missing(backend)


def converted(applied: Applied, backend: str) -> Verified:
    """Whether the backend ran the batches of the replay, and how the conversion had gone."""
    conversions = applied.evidence.get("conversions", [])
    ran = replaced(applied, backend)
    if not conversions:
        return Verified(False, f"no model was converted; {ran.evidence}")
    one = conversions[0]
    came = "found in the cache" if one["cached"] else "exported"
    said = (
        f"{one['backend']} on {one['threads']} thread(s), {came} and loaded in {one['seconds']:.3g} s, at most"
        f" {one['deviation']:.2g} from the original over {one['batches']} batches; {ran.evidence}"
    )
    return Verified(ran.effective and str(one["backend"]).startswith(backend), said)
