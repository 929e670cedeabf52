"""``fuse.tensorrt``: the model compiled by torch-tensorrt for the shapes in its traffic, on the GPU."""

from __future__ import annotations

from latfix.runners.backends.tensorrt.partition import partition_words
from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.fuse.converted_model import convertible
from latfix.runners.fixes.shared.conditions import need
from latfix.runners.fixes.shared.model_facts import COMPUTE, count, facts, ran_batches

#: Minimum share of the model's operators that TensorRT must run, if it is known.
_MOST_OPERATORS = 0.5


def _verify(applied: Applied) -> Verified:
    seen = applied.evidence
    conversions = seen.get("conversions", [])
    ran, counts = ran_batches(applied, "TensorRT")
    if not conversions or not str(conversions[0]["backend"]).startswith("tensorrt"):
        return Verified(False, f"no model was compiled for TensorRT; {counts}")
    one = conversions[0]
    partition = one["partition"]
    enough = partition["engines"] > 0 and (partition["share"] is None or partition["share"] >= _MOST_OPERATORS)
    source = "found in the cache" if one["cached"] else "built"
    parts = [
        f"{one['backend']} on {one['device']}, {source} and loaded in {one['seconds']:.3g} s",
        partition_words(partition),
        f"shapes {', '.join(one['profile'])}",
        f"at most {one['deviation']:.2g} from the original over {one['batches']} batches",
        counts,
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
    risk="the service starts later, by the build, minutes the first time; the original also stays in memory, for"
    " batches of shapes that were not in the traffic",
    changes_outputs=True,
    making_s=120.0,  # a guess, not measured yet
    needs=(
        need(
            lambda context: not count(facts(context).get("modules", {}), "EngineModule"),
            "the model is a TensorRT engine already",
        ),
        *convertible("tensorrt", ("default", "bf16", "fp16")),
    ),
    sets={"backend": "tensorrt"},
    verify=_verify,
)
