"""Compiled models: graphs count themselves, and uncompiled runs are not counted as compiled.

The compiler behind dynamo takes many seconds and is replaced: only dynamo's calls of its result matter here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.runners.fixes import Applied
from latfix.runners.fixes.fuse import compile as fuse_compile
from latfix.runners.fixes.quantize import bf16 as quantize_bf16
from latfix.runners.service.loaded_service import Service
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload
from tests.records import build_record
from tests.runners.engine.served import loaded_service

SMALL = """
import torch
from latfix import Workload

class Small(Workload):
    def load(self, device):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

    def prepare(self, request):
        return torch.ones(int(request.features["value"]), 8)
"""


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        from torch._dynamo import config as dynamo
        from torch._inductor import compile_fx, config

    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, _: graph.forward)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with config.patch(freezing=False), dynamo.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        yield
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    torch.compiler.set_stance("default")
    torch._dynamo.reset()


def traffic(values: list[int]) -> Traffic:
    n = len(values)
    return Traffic.plain(np.arange(n) * 1_000_000, features={"value": np.array(values)})


WARM = [2, 3, 5, 9]


def loaded(folder: Path, **values: Any) -> Service:
    service = loaded_service(folder, "adapter:Small", warm=traffic(WARM), compile="dynamic", **values)
    service.protect()
    return service


def served(service: Service, values: list[int]) -> dict[str, Any]:
    requests = [traffic(values).request(k) for k in range(len(values))]
    assert [outcome.error for outcome in service.predict(requests)] == [""] * len(values)
    return service.evidence(traffic(WARM))


def verified(service: Service, evidence: dict[str, Any], in_run: int = 0, fix: Any = fuse_compile.FIX) -> Any:
    record = build_record(traffic=traffic(WARM), settings=service.settings, compilations_in_run=in_run)
    return fix.verify(Applied(evidence=evidence, record=record, without=record))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_workload(tmp_path / "small", adapter=SMALL)


@pytest.mark.parametrize("inference", [False, True])
def test_graphs_compiled_at_warm_up_run_in_requests(small: Path, inference: bool) -> None:
    """In each mode: graphs warmed up in another mode would be compiled again."""
    service = loaded(small, inference_mode=inference)
    warm = service.compiles.count
    seen = served(service, [2, 4, 7, 9])
    assert warm > 0 and service.compiles.count == warm
    assert (seen["batches_run"], seen["batches_replaced"]) == (4, 4)
    assert seen["graphs"] >= 1 and seen["graph_dtypes"].get("float32", 0) >= 3
    found = verified(service, seen | {"replaced_share": 0.9})
    assert found.effective, found.evidence
    assert not verified(service, seen | {"replaced_share": 0.9}, in_run=1).effective
    assert not verified(service, seen | {"replaced_share": 0.2}).effective, "most of the time was elsewhere"


@pytest.mark.parametrize("shared", [False, True])
def test_every_workers_model_runs_compiled(small: Path, shared: bool) -> None:
    seen = served(loaded(small, workers=2, shared_model=shared), [2, 4, 7, 9] * 4)
    assert seen["batches_run"] == seen["batches_replaced"] == 16


def test_shapes_that_run_uncompiled_are_reported(small: Path) -> None:
    """A length of one needs another graph, which warm-up did not compile."""
    service = loaded(small)
    seen = served(service, [1, 1, 4, 1])
    assert (seen["batches_run"], seen["batches_replaced"]) == (4, 1)
    found = verified(service, seen | {"replaced_share": 0.9})
    assert not found.effective and "1 of 4 batches" in found.evidence


def test_bfloat16_shows_in_the_compiled_graphs(small: Path) -> None:
    for precision, effective in (("bf16", True), ("default", False)):
        service = loaded(small, precision=precision)
        assert verified(service, served(service, [2]), fix=quantize_bf16.FIX).effective is effective


def test_the_cache_is_the_users(small: Path, tmp_path: Path) -> None:
    service = loaded(small, warmup_shapes=0)
    assert service.warmup.batches > 0, "also without a number of shapes"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "latfix" / "inductor")


def test_more_versions_than_are_allowed_are_an_error_and_no_fallback(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latfix.errors import RunnerError
    from latfix.runners.model_transforms import torch_compile as compiled

    branching = SMALL.replace(
        "return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))",
        "return Branching()",
    ).replace(
        "class Small",
        "class Branching(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 2 if x.shape[1] == 2 else x * 3 if x.shape[1] == 3 else x * 4 if x.shape[1] == 5 else x\n"
        "\nclass Small",
    )
    (small / "adapter.py").write_text(branching)
    monkeypatch.setattr(compiled, "_VERSIONS", 1)
    with pytest.raises(RunnerError, match=r"warm-up with.*(FailOnRecompileLimitHit|recompile_limit)"):
        loaded(small)


def adapter(forward: str) -> str:
    """The workload with a model of another ``forward``."""
    net = f"""
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 64), torch.nn.Linear(64, 4)

    def forward(self, x):
{forward}

class Small"""
    head, _, tail = SMALL.replace("return torch.nn.Sequential", "return Net() or torch.nn.Sequential").partition(
        "\nclass Small"
    )
    return head + net + tail


def test_a_disabled_compiler_is_reported(small: Path) -> None:
    """For example by an adapter under a debugger: everything runs, nothing is compiled."""
    torch.compiler.set_stance("force_eager")
    service = loaded(small)
    found = verified(service, served(service, [2, 4, 7]))
    assert not found.effective and found.evidence.startswith("0 compilations"), found.evidence
    assert "0 of 3 batches" in found.evidence


def test_a_model_without_compiled_operators_is_reported(tmp_path: Path) -> None:
    """Every part is behind a graph break, so all graphs are empty."""
    forward = """
        return torch.compiler.disable(self.whole)(x)

    def whole(self, x):
        return self.last(torch.relu(self.first(x)))"""
    service = loaded(write_workload(tmp_path / "w", adapter=adapter(forward)))
    found = verified(service, served(service, [2, 4, 7]))
    assert not found.effective and "0 of 3 batches" in found.evidence, found.evidence


def test_a_graph_with_hardly_any_of_the_time_is_reported(tmp_path: Path) -> None:
    """One addition is compiled; the time is in a call that cannot be."""
    forward = """
        return torch.compiler.disable(self.whole)(x + 1)

    def whole(self, x):
        for _ in range(300):
            y = self.last(torch.relu(self.first(x)))
        return y"""
    service = loaded(write_workload(tmp_path / "w", adapter=adapter(forward)))
    seen = served(service, [2, 4, 7])
    assert seen["batches_replaced"] == 3
    found = verified(service, seen)
    assert not found.effective and "in 3 of 3 batches" in found.evidence, found.evidence


def test_a_graph_that_the_compiler_cannot_take_is_an_error_and_no_fallback(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import compile_fx

    from latfix.errors import RunnerError

    def refuse(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no kernel for this")

    monkeypatch.setattr(compile_fx, "compile_fx", refuse)
    with pytest.raises(RunnerError, match=r"warm-up with .*no kernel for this") as raised:
        loaded(small)
    assert "\n" not in raised.value.message
