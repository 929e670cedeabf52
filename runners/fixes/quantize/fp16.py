"""``quantize.fp16``: weights and activations in half precision, on a GPU."""

from __future__ import annotations

from latfix.runners.fixes.fix import Fix
from latfix.runners.fixes.quantize.reduced_precision import available, computed_in, new_in_half
from latfix.runners.fixes.shared.model_facts import COMPUTE

FIX = Fix(
    id="quantize.fp16",
    title="weights and activations in half precision",
    treats=COMPUTE,
    relief=0.28,
    compute=0.7,
    risk="accuracy, and numbers above 65,504 become infinite; measured before speed",
    changes_outputs=True,
    accepted=0.9,
    needs=(available("fp16"), new_in_half),
    sets={"precision": "fp16"},
    verify=lambda applied: computed_in(applied, "fp16", "float16"),
)
