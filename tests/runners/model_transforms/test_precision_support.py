"""Whether a precision can run, and what is missing if not."""

from __future__ import annotations

import types
from typing import Any, get_args

import pytest
import torch

from latfix.runners.model_transforms.precision_support import (
    by_torchao,
    device_capability,
    torchao_missing,
    unsupported,
    uses_torchao,
)
from latfix.settings import Precision


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Simulates that torchao is installed or not."""

    def have(there: bool) -> None:
        spec = types.SimpleNamespace() if there else None
        monkeypatch.setattr(
            "latfix.runners.model_transforms.precision_support.importlib.util.find_spec", lambda _: spec
        )

    return have


def test_the_cpu_has_no_half_precision_and_no_fp8() -> None:
    refused = {precision for precision in get_args(Precision) if unsupported(precision, "cpu", None)}
    assert refused == {"tf32", "fp16", "fp8_dynamic"}


def test_without_torchao_a_gpu_has_no_8_bit_precision(torchao: Any) -> None:
    torchao(False)
    found = {one: reason for one in get_args(Precision) if (reason := unsupported(one, "cuda:0", (9, 0)))}
    assert set(found) == {"int8_dynamic", "int8_weight_only", "fp8_dynamic"}
    assert all("pip install 'latfix[quantization]'" in reason for reason in found.values())
    torchao(True)
    assert torchao_missing() == ""


def test_torchao_makes_the_eight_bits_of_gpus_only() -> None:
    assert {one for one in get_args(Precision) if uses_torchao(one, "cuda:0")} == {
        "int8_dynamic",
        "int8_weight_only",
        "fp8_dynamic",
    }
    assert not any(uses_torchao(one, "cpu") for one in get_args(Precision) if one != "fp8_dynamic")
    assert not by_torchao(torch.ones(2)) and not by_torchao(None)


def test_the_capability_is_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if device == "cuda:1" else (8, 6))
    assert device_capability("cpu") is None
    assert (device_capability("cuda:0"), device_capability("cuda:1")) == ((8, 6), (9, 0))
