"""Options of torch-tensorrt's compiler, for the installed version."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from latfix.errors import RunnerError
from latfix.settings import Precision

PRECISIONS: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def compile_options(
    compiler: Callable[..., Any], precision: Precision, engines: Path | None, version: str
) -> dict[str, Any]:
    """Options of ``torch_tensorrt.dynamo.compile``, without those that this version lacks.

    The compiler ignores unknown options, so an option of another version would silently do nothing.

    :param precision: ``default``, ``bf16`` or ``fp16``.
    :param engines: folder for built engines; ``None`` for no cache.
    :param version: torch-tensorrt's version, for the message.
    :raises RunnerError: this version has no option for that precision.
    """
    known = set(inspect.signature(compiler).parameters)
    wanted: dict[str, Any] = {
        # The compiler's default is TF32, which torch uses for matrices only on request.
        "disable_tf32": not tf32_allowed(),
    }
    if engines is not None:
        wanted |= {
            # Only refittable engines are cached. Refitting identical weights keeps all optimizations.
            "immutable_weights": False,
            "refit_identical_engine_weights": True,
            "cache_built_engines": True,
            "reuse_cached_engines": True,
            "engine_cache_dir": str(engines),
        }
    return {
        **{name: value for name, value in wanted.items() if name in known},
        **_precision_options(known, precision, version),
    }


def tf32_allowed() -> bool:
    """True if torch may round the inputs of matrix products to TF32."""
    return torch.get_float32_matmul_precision() != "highest"


def _precision_options(known: set[str], precision: Precision, version: str) -> dict[str, Any]:
    if precision == "default":
        return {}
    low = PRECISIONS[precision]
    if {"enable_autocast", "autocast_low_precision_type"} <= known:
        # The model is unmodified; the compiler keeps operators that lose too much in float32.
        return {"enable_autocast": True, "autocast_low_precision_type": low}
    if "enabled_precisions" in known:
        typing = {"use_explicit_typing": False} if "use_explicit_typing" in known else {}
        return {"enabled_precisions": {torch.float32, low}, **typing}
    raise RunnerError(
        f"precision = {precision!r}: torch_tensorrt {version} has no option for it (neither enable_autocast nor "
        "enabled_precisions); use precision = 'default'"
    )
