"""``fuse.tensorrt``: the model compiled by torch-tensorrt for the shapes that its traffic brings, on the GPU."""

from __future__ import annotations

from latfix.runners.backends.tensorrt.partition import partition_words
from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.fuse.converted_model import convertible
from latfix.runners.fixes.shared.conditions import need
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, facts, ran_batches

#: The share of a model's operators that TensorRT must run, where it is known.
_MOST_OPERATORS = 0.5


def _verify(applied: Applied) -> Verified:
    seen = applied.evidence
    conversions = seen.get("conversions", [])
    ran, said = ran_batches(applied, "TensorRT")
    if not conversions or not str(conversions[0]["backend"]).startswith("tensorrt"):
        return Verified(False, f"no model was compiled for TensorRT; {said}")
    one = conversions[0]
    partition = one["partition"]
    enough = partition["engines"] > 0 and (partition["share"] is None or partition["share"] >= _MOST_OPERATORS)
    came = "found in the cache" if one["cached"] else "built"
    parts = [
        f"{one['backend']} on {one['device']}, {came} and loaded in {one['seconds']:.3g} s",
        partition_words(partition),
        f"shapes {', '.join(one['profile'])}",
        f"at most {one['deviation']:.2g} from the original over {one['batches']} batches",
        said,
    ]
    outside = seen.get("outside", {})
    if outside.get("batches"):
        parts.append(f"{outside['batches']} of other shapes ran on the original ({'; '.join(outside['shapes'])})")
    parts += [text for text in (one["kept"], one["discarded"]) if text]
    return Verified(ran and enough, "; ".join(parts))


FIX = Fix(
    id="fuse.tensorrt",
    title="run the model with TensorRT",
    treats=COMPUTE,
    relief=0.3,
    compute=0.7,
    risk="a start later by the build, minutes the first time; the original stays in memory beside it, for batches of"
    " other shapes than those seen in the traffic",
    changes_outputs=True,
    making_s=120.0,  # a guess: it has not been seen yet
    needs=(
        need(
            lambda context: not count(facts(context).get("modules", {}), "EngineModule"),
            "the model is a TensorRT engine already",
        ),
        *convertible("tensorrt", ("default", "bf16", "fp16"), on="cuda"),
    ),
    sets={"backend": "tensorrt"},
    verify=_verify,
)
