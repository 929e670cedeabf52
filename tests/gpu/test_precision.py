"""Reduced precision on a CUDA device: answers, and formats of the kernels. Skipped without a device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from latfix.profilers.gpu.kernel_number_formats import Format, is_device_kernel, matrix_formats
from latfix.runners.calls.call_counters import Tally
from latfix.runners.model_transforms.precision import activation_dtype, in_precision
from latfix.runners.model_transforms.precision_support import by_torchao, device_capability, unsupported, uses_torchao
from latfix.runners.model_transforms.torch_compile import Graphs, compiled
from tests.gpu.marks import ON_CUDA

pytestmark = ON_CUDA

_DEVICE, _WIDTH = "cuda:0", 512
#: Precision, format of its matrix kernels, and largest error of answers relative to the largest value.
_PRECISIONS: list[tuple[Any, Format, float]] = [
    ("bf16", "bf16", 0.03),
    ("fp16", "fp16", 0.01),
    ("int8_dynamic", "int8", 0.05),
    ("int8_weight_only", "bf16", 0.05),
    ("fp8_dynamic", "fp8", 0.15),
]
_EIGHT_BITS = [one for one in _PRECISIONS if uses_torchao(one[0], _DEVICE)]


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.ReLU(), nn.Linear(2 * _WIDTH, 256)).to(_DEVICE).eval()


def _changed(precision: Any, keep: tuple[str, ...] = ()) -> nn.Module:
    if reason := unsupported(precision, _DEVICE, device_capability(_DEVICE)):
        pytest.skip(reason)
    return in_precision(_net(), precision, keep)


def _input(rows: int, precision: Any) -> torch.Tensor:
    torch.manual_seed(rows)
    return torch.randn(rows, _WIDTH).to(_DEVICE, activation_dtype(precision) or torch.float32)


def _kernels(model: Any, x: torch.Tensor) -> Counter[str]:
    """Launches of each kernel in one forward pass."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.inference_mode():
        model(x)  # the first call chooses kernels, and may compile
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities, acc_events=True) as seen:
            model(x)
            torch.cuda.synchronize()
    result: Counter[str] = Counter()
    for event in seen.events() or ():
        if event.device_type.name == "CUDA" and is_device_kernel(event.name):
            result[event.name] += 1
    return result


def _off_by(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.float() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("rows", [1, 17, 64])
@pytest.mark.parametrize(("precision", "expected", "most"), _PRECISIONS)
def test_answers_are_close_and_matrix_kernels_use_the_format(
    precision: Any, expected: Format, most: float, rows: int
) -> None:
    model = _changed(precision)
    with torch.inference_mode():
        exact, result = _net()(_input(rows, "default")), model(_input(rows, precision))
    assert result.dtype is (activation_dtype(precision) or torch.float32)
    assert 0 < _off_by(result, exact) < most
    kernels = _kernels(model, _input(rows, precision))
    formats = matrix_formats(kernels)
    assert formats[expected] >= 2, f"two layers, one kernel each at least; ran: {dict(kernels)}"
    assert not formats["fp32"] and not formats["tf32"], dict(kernels)


def test_products_of_float32_use_the_matrix_units() -> None:
    x, before = _input(64, "default"), torch.get_float32_matmul_precision()
    with torch.inference_mode():
        exact = _net()(x)
    try:
        model = _changed("tf32")
        with torch.inference_mode():
            assert 0 < _off_by(model(x), exact) < 0.01
        formats = matrix_formats(_kernels(model, x))
    finally:
        torch.set_float32_matmul_precision(before)
    assert formats["tf32"] >= 2 and not formats["fp32"], formats


def test_without_a_precision_nothing_is_reduced() -> None:
    kernels = _kernels(_net(), _input(64, "default"))
    formats = matrix_formats(kernels)
    assert formats["fp32"] + formats["tf32"] >= 2, dict(kernels)
    assert sum(formats.values()) == formats["fp32"] + formats["tf32"], dict(kernels)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8_dynamic", "fp8_dynamic"])
def test_a_kept_layer_computes_in_float32(precision: Any) -> None:
    model = _changed(precision, ("2",))
    assert not by_torchao(model.get_submodule("2").weight)
    formats = matrix_formats(_kernels(model, _input(64, precision)))
    assert formats["fp32"] + formats["tf32"] >= 1, formats
    assert sum(formats.values()) > formats["fp32"] + formats["tf32"], formats


@pytest.mark.parametrize(
    ("precision", "expected", "most"), [one for one in _PRECISIONS if uses_torchao(one[0], _DEVICE)]
)
def test_eight_bits_compiled(precision: Any, expected: Format, most: float) -> None:
    """Compiled like in the service: dynamic shapes, weights not as constants."""
    model = compiled(_changed(precision), Tally(), Graphs(), "dynamic", freezing=False)
    for rows in (5, 1, 40, 200):
        with torch.inference_mode():
            exact, result = _net()(_input(rows, "default")), model(_input(rows, precision))
        assert 0 < _off_by(result, exact) < most, rows
    kernels = _kernels(model, _input(40, precision))
    formats = matrix_formats(kernels)
    # With integer weights, the compiler may choose torch's own kernel, which multiplies in float32.
    own = formats["fp32"] if precision == "int8_weight_only" else 0
    assert formats[expected] + own >= 1, dict(kernels)
