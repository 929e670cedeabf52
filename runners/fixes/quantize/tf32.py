"""``quantize.tf32``: float32 matrix products on a GPU with inputs rounded to TF32, on its matrix units."""

from __future__ import annotations

from collections import Counter

from latfix.profilers.gpu.kernel_number_formats import matrix_formats
from latfix.runners.fixes.fix import Context, Fix, Verified
from latfix.runners.fixes.quantize.reduced_precision import available, by_kernels
from latfix.runners.fixes.shared.model_facts import COMPUTE


def _in_float32(context: Context) -> str:
    """At least half of the profiled batches' matrix kernels must compute in float32, if their names show formats."""
    kernels = Counter[str]()
    for work in context.record.meta.device_profile:
        kernels.update(work.kernels)
    found = matrix_formats(kernels)
    known = sum(number for format_, number in found.items() if format_)
    if not known or found["fp32"] >= known / 2:
        return ""
    return f"{found['fp32']} of {known} matrix kernels compute in float32"


FIX = Fix(
    id="quantize.tf32",
    title="matrix products of float32 on the GPU's matrix units",
    treats=COMPUTE,
    relief=0.3,
    compute=0.5,
    risk="accuracy: inputs of products are rounded to 10 bits; measured before speed",
    changes_outputs=True,
    accepted=0.98,
    needs=(available("tf32"), _in_float32),
    sets={"precision": "tf32"},
    # No type of a tensor shows the format.
    verify=lambda applied: (
        by_kernels(applied, "tf32") or Verified(False, "no name of a matrix kernel shows its format")
    ),
)
