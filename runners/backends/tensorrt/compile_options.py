"""What the compiler of torch-tensorrt is told, by what the installed version can be told."""

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
    """Options of ``torch_tensorrt.dynamo.compile``, those left out that this version has no parameter for.

    It swallows what it does not know, so that an option of another version would silently do nothing.

    :param precision: ``default``, ``bf16`` or ``fp16``.
    :param engines: where it keeps engines that it has built; ``None`` for nowhere.
    :param version: of torch-tensorrt, for the message.
    :raises RunnerError: this version cannot be asked for that precision.
    """
    known = set(inspect.signature(compiler).parameters)
    wanted: dict[str, Any] = {
        # Its default is TF32, which torch itself takes for matrices only where somebody asked for it.
        "disable_tf32": not tf32_allowed(),
    }
    if engines is not None:
        wanted |= {
            # Engines whose weights cannot be given again are not kept; identical weights cost no optimization.
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
    """Whether torch may round the inputs of matrix products to TF32."""
    return torch.get_float32_matmul_precision() != "highest"


def _precision_options(known: set[str], precision: Precision, version: str) -> dict[str, Any]:
    if precision == "default":
        return {}
    low = PRECISIONS[precision]
    if {"enable_autocast", "autocast_low_precision_type"} <= known:
        # The model stays as it is; what loses too much stays in float32 by the compiler's own rules.
        return {"enable_autocast": True, "autocast_low_precision_type": low}
    if "enabled_precisions" in known:
        typing = {"use_explicit_typing": False} if "use_explicit_typing" in known else {}
        return {"enabled_precisions": {torch.float32, low}, **typing}
    raise RunnerError(
        f"precision = {precision!r}: torch_tensorrt {version} has neither enable_autocast nor enabled_precisions"
        " to ask for it with; use precision = 'default'"
    )
