"""The number format in which a CUDA kernel computes, from its name.

Libraries put the format into kernel names: cuBLAS and cuBLASLt (``ampere_…gemm``, ``sm90_xmma_…``, ``nvjet_…``),
CUTLASS (C-style names and templates), cuDNN, FlashAttention, and torch's templates by their arguments. The format is
that of the factors; sums are wider in all of them. Most compiler-generated kernels have no format in their names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

Format = Literal["bf16", "fp16", "tf32", "fp32", "int8", "fp8", ""]

#: Letters of an nvjet name for the first operand. Others (fp4, double) are unknown.
_NVJET = {"h": "fp16", "t": "bf16", "q": "fp8"}
_SPELLED: Mapping[str, Format] = {
    "bf16": "bf16",
    "f16": "fp16",
    "fp16": "fp16",
    "tf32": "tf32",
    "f32": "fp32",
    "i8": "int8",
    "s8": "int8",
    "u8": "int8",
    "e4m3": "fp8",
    "e5m2": "fp8",
}
#: ``aten::mm`` and similar: operators, which profiles contain along with kernels.
_OPERATOR = re.compile(r"[A-Za-z_]\w*::\w[\w.]*")
_NVJET_NAME = re.compile(r"nvjet_(?:sm\d+_)?([a-z]+)_")
#: Types of operands and result, then the type of the multiplication: ``f32f32_tf32f32_f32`` multiplies in tf32.
_XMMA = re.compile(
    r"xmma_\w*?gemm_(?:indexed_)?(?P<io>bf16|tf32|f16|f32|i8|e4m3|e5m2)[a-z0-9]*"
    r"(?:_(?P<by>bf16|tf32|f16|f32|i8|e4m3|e5m2)(?:f16|f32|i32|tf32|bf16))?"
)
#: An instruction of CUTLASS 3: result, then operands, as in ``SM90_64x128x32_F32E4M3E4M3_SS_TN``.
_ATOM = re.compile(r"sm\d+_\d+x\d+x\d+_(?:f32|f16|s32)(bf16|f16|tf32|e4m3|e5m2|s8|u8)")
_ALONE = r"(?<![a-z0-9]){}(?![a-z0-9])"
#: Formats in C-style names; the first match counts.
_SPELLINGS: tuple[tuple[re.Pattern[str], Format], ...] = (
    (re.compile(r"e2m1|(?<![a-z])[iu]\d+\w*gemm_[su]4|b1_|(?<![a-z])[dzc]\d*gemm"), ""),
    (re.compile(r"e4m3|e5m2|fp8|f8f8"), "fp8"),
    (re.compile(r"(?<![a-z])i\d{4,}(?:gemm|cudnn)|(?<![a-z0-9])(?:int8|s8)(?![a-z0-9])"), "int8"),
    (re.compile(r"tf32|tfloat32"), "tf32"),
    (re.compile(_ALONE.format("bf16") + r"|bfloat16"), "bf16"),
    (re.compile(_ALONE.format("fp?16") + r"|half_t|(?<![a-z])h\d*(?:x\d+x\d+)?gemm"), "fp16"),
    # From Ampere on, the 16 × 8 × 8 instruction without a type in the name is tf32.
    (re.compile(r"(?:cutlass_8\d|ampere)\w*_s1688gemm"), "tf32"),
    (re.compile(r"sgemm|scudnn|simt_s"), "fp32"),
)
_ARGUMENTS: tuple[tuple[re.Pattern[str], Format], ...] = (
    (re.compile(r"__nv_bfloat16|c10::bfloat16|cutlass::bfloat16_t"), "bf16"),
    (re.compile(r"__half|c10::half|cutlass::half_t"), "fp16"),
    (re.compile(r"__nv_fp8|c10::float8|float_e4m3"), "fp8"),
    (re.compile(r"(?<![\w:])(?:signed char|int8_t)(?!\w)"), "int8"),
    (re.compile(r"(?<![\w:])float(?![\w])"), "fp32"),
)
_MATRIX = re.compile(
    r"nvjet_|gemm|gemv|xmma_|tensorop|scudnn|convolve|fprop|(?<![a-z])bmm_|dot_kernel|triton_tem_|fmha|sdpa|"
    r"flash_fwd(?!\w*combine)|flashattnfwd(?!combine)|mm_kernel"
)
#: Helpers of matrix kernels that sum, convert, move or transpose data.
_NO_MATRIX = re.compile(
    r"^(?:void )?at::native::|splitkreduce|reduce_kernel|quantize|_quant_|transpose|nchwtonhwc|nhwctonchw"
)
#: torch's own products with integer weights, named by its namespace like its helpers.
_PACKED = re.compile(r"\bweight_int\d+pack_mm_kernel")
#: The return type before a kernel's own name.
_RETURNS = re.compile(r"^(?:void |std::enable_if<.*?>::type )?(?:<unnamed>::)?")
#: CUTLASS's wrappers, whose template argument is the actual kernel.
_FRAME = re.compile(r"cutlass\w*::(?:\w+::)*(?:kernel2?|device_kernel)$")
#: The operand type of a cuBLAS kernel, whose first type is that of the sums.
_READS = re.compile(r"cublasgemvtensor\w*<([\w:]+) const>")
_MOVES = re.compile(r"copy|catarray|fill|gather|scatter|indexselect|transpose|memcpy|memset|nccl")


def is_device_kernel(name: str) -> bool:
    """True if a name in a profile is a kernel's, not that of a framework's operator or a copy."""
    return not _OPERATOR.fullmatch(name) and not name.startswith(("Memcpy", "Memset"))


def is_matrix_kernel(name: str) -> bool:
    """True if a kernel multiplies matrices: products, convolutions, fused attention."""
    low = name.lower()
    if not is_device_kernel(name) or _MATRIX.search(_head(low)) is None:
        return False
    return _NO_MATRIX.search(low) is None or _PACKED.search(low) is not None


def number_format(name: str) -> Format:
    """The format in which a kernel computes; empty if unknown, or if it only moves or converts data.

    :param name: demangled, from CUPTI or torch's profiler.
    """
    low = name.lower()
    if not is_device_kernel(name) or "nccl" in low:
        return ""
    if low.startswith("triton_"):
        return _of_triton(low)
    if result := _NVJET_NAME.search(low):
        return _of_nvjet(low, result.group(1))
    if is_matrix_kernel(name):
        return _of_matrix(low)
    return "" if _MOVES.search(low) or _NO_MATRIX.search(low.replace("at::native::", "")) else _of_arguments(low)


def matrix_formats(kernels: Mapping[str, int]) -> Counter[Format]:
    """Number of launches of matrix kernels by format, from launches by name."""
    result: Counter[Format] = Counter()
    for name, launches in kernels.items():
        if is_matrix_kernel(name):
            result[number_format(name)] += launches
    return result


def _head(low: str) -> str:
    """A kernel's own name without template arguments, which may contain names of other kernels."""
    own = _RETURNS.sub("", low, count=1)
    before = own.partition("<")[0]
    return own if _FRAME.search(before) else before


def _of_triton(low: str) -> Format:
    """Among inductor's kernels, only templates of operators with a fixed format are known."""
    if not low.startswith("triton_tem_"):
        return ""
    return "int8" if "_int_mm" in low else "fp8" if "_scaled_mm" in low else ""


def _of_nvjet(low: str, letters: str) -> Format:
    if letters.startswith("s"):
        return "tf32" if "tf32" in low else ""
    return _NVJET.get(letters[0], "")  # type: ignore[return-value]


def _of_matrix(low: str) -> Format:
    if result := _XMMA.search(low):
        return _SPELLED[result.group("by") or result.group("io")]
    if result := _ATOM.search(low):
        return _SPELLED[result.group(1)]
    if result := re.search(r"fmha_cutlassf_(bf16|f16|f32)", low):
        return _SPELLED[result.group(1)]
    if _PACKED.search(low):  # its factors are converted to the type of the activations, the first argument
        return _of_arguments(low.partition("(")[2].partition(",")[0])
    if "sdpa" in low:  # cuDNN writes f16 for both 16-bit formats
        return ""
    # A library's template around a named kernel repeats the format; the first mention is enough.
    spelled = low if "::gemm" in low or "flash" in low else low.partition("<")[0] + _inner_name(low)
    for pattern, format_ in _SPELLINGS:
        if pattern.search(spelled):
            return format_
    return _first_argument(low)


def _inner_name(low: str) -> str:
    result = re.search(r"kernel2?<(\w+)>", low)
    return result.group(1) if result else ""


def _first_argument(low: str) -> Format:
    """The first type among a template's arguments, or the operand type of a cuBLAS kernel."""
    if (read := _READS.search(low)) is not None:
        low = f"<{read.group(1)}>"
    hits = [(hit.start(), format_) for pattern, format_ in _ARGUMENTS if (hit := pattern.search(low, low.find("<")))]
    return min(hits)[1] if hits and "<" in low else ""


def _of_arguments(low: str) -> Format:
    """The type of a template's arguments; float next to a narrower type is only for intermediate results."""
    kinds = {format_ for pattern, format_ in _ARGUMENTS if pattern.search(low)}
    narrow = kinds - {"fp32"}
    if len(narrow) == 1:
        return narrow.pop()
    return "fp32" if kinds == {"fp32"} else ""
