"""``quantize.*``: lower precision of weights and activations."""

from latfix.runners.fixes.quantize import (
    bf16,
    fp8_dynamic,
    fp16,
    int8_dynamic,
    int8_excluded,
    int8_weight_only,
    tf32,
)

__all__ = ["bf16", "fp8_dynamic", "fp16", "int8_dynamic", "int8_excluded", "int8_weight_only", "tf32"]
