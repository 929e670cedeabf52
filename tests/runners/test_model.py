"""What the settings make of a model, and whether the service can tell a change from none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.errors import RunnerError
from latfix.record import RunRecord
from latfix.runners.accuracy import evaluate, save_outputs
from latfix.runners.fixes import FIXES, Applied
from latfix.runners.model import compiler_missing, load_models, pool_applies, resolve_device
from latfix.runners.service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.model import Traffic

WriteWorkload = Callable[..., Path]

LINEAR = """
import torch
from latfix import Request, Workload

class Small(Workload):
    def load(self, device):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)

    def prepare(self, request):
        generator = torch.Generator().manual_seed(int(request.features["value"]))
        return torch.randn(8, generator=generator)

    def evaluate(self, predict):
        from latfix import Request
        outputs = predict([Request(id=str(k), arrival_s=0.0, features={"value": k}) for k in range(8)])
        return sum(float(output.float().abs().sum()) for output in outputs)
"""
#: Its work is in a parameter of its own: there is no linear layer to quantize.
NO_LINEAR = """
import torch
from latfix import Request, Workload

class Matrix(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 4))
        self.act = torch.nn.ReLU()

    def forward(self, x):
        return self.act(x @ self.weight)

class Plain(Workload):
    def load(self, device):
        return Matrix()

    def prepare(self, request):
        return torch.full((4,), float(request.features["value"]))
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Settings with ``intra_op_threads`` change torch for the whole process; put it back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory, write_workload: WriteWorkload) -> Path:
    return write_workload(tmp_path_factory.mktemp("model") / "linear", adapter=LINEAR)


@pytest.fixture(scope="module")
def no_linear(tmp_path_factory: pytest.TempPathFactory, write_workload: WriteWorkload) -> Path:
    return write_workload(tmp_path_factory.mktemp("model") / "plain", adapter=NO_LINEAR)


def settings(**values: Any) -> RunnerSettings:
    return RunnerSettings(device="cpu", intra_op_threads=1, **values)


def traffic(n: int = 12) -> Traffic:
    return Traffic(
        arrival_ns=np.arange(n) * 10_000_000,
        ids=[str(k) for k in range(n)],
        priority=np.zeros(n, dtype=np.int8),
        sessions=[None] * n,
        deadline_ms=np.full(n, np.nan),
        features={"value": np.arange(n)},
        payloads=[None] * n,
    )


def loaded(folder: Path, **values: Any) -> Service:
    service = Service(folder, "adapter:Small" if folder.name == "linear" else "adapter:Plain", settings(**values))
    service.load()
    service.warm_shapes(traffic())
    return service


def effective(fix: str, service: Service) -> tuple[bool, str]:
    """What the fix's own verification makes of the service's evidence."""
    record = RunRecord(
        folder=Path("run"),
        meta={"settings": service.settings.as_dict(), "compilations_in_run": 0},
        requests={},
        batches={},
        events={},
        samples={},
        traffic=traffic(),
    )
    known = next(one for one in FIXES if one.id == fix)
    found = known.verify(Applied(evidence=service.evidence(traffic()), record=record, without=record))
    return found.effective, found.evidence


def test_int8_layers_are_made_and_run(linear: Path) -> None:
    service = loaded(linear, precision="int8_dynamic")
    kinds = [type(module).__module__ for module in service.models.instances[0].model.modules()]
    assert sum("quantized.dynamic" in kind for kind in kinds) == 2
    found, evidence = effective("quantize.int8_dynamic", service)
    assert found, evidence
    assert evidence.startswith("2 of 3 ")


def test_without_the_setting_nothing_is_int8(linear: Path) -> None:
    service = loaded(linear)
    assert service.evidence(traffic())["modules"] == {
        "torch.nn.modules.linear.Linear": 2,
        "torch.nn.modules.activation.ReLU": 1,
    }
    assert not effective("quantize.int8_dynamic", service)[0]


def test_int8_on_a_model_without_linear_layers_took_no_effect(no_linear: Path) -> None:
    found, evidence = effective("quantize.int8_dynamic", loaded(no_linear, precision="int8_dynamic"))
    assert not found
    assert evidence.startswith("0 of 1 ")


def test_bf16_reaches_weights_inputs_and_answers(linear: Path) -> None:
    service = loaded(linear, precision="bf16")
    instance = service.models.instances[0]
    assert {parameter.dtype for parameter in instance.model.parameters()} == {torch.bfloat16}
    assert instance.dtype is torch.bfloat16
    outcomes = service.predict([traffic().request(k) for k in range(3)])
    assert {outcome.output.dtype for outcome in outcomes} == {torch.bfloat16}, [o.error for o in outcomes]
    found, evidence = effective("quantize.bf16", service)
    assert found, evidence
    assert not effective("quantize.bf16", loaded(linear))[0]


def test_precision_changes_the_score_a_little(linear: Path) -> None:
    scores = [
        evaluate(loaded(linear, precision=p), traffic(), None).score for p in ("default", "bf16", "int8_dynamic")
    ]
    assert len(set(scores)) == 3
    assert scores == pytest.approx([scores[0]] * 3, rel=0.1)


def test_agreement_tells_another_model_from_the_same(no_linear: Path, tmp_path: Path) -> None:
    service = loaded(no_linear)
    assert save_outputs(service, traffic(), tmp_path / "outputs.npz") == 12
    assert evaluate(service, traffic(), tmp_path / "outputs.npz").score == 1.0
    with torch.no_grad():
        service.models.instances[0].model.weight[:, 0] = 9.0
    changed = evaluate(service, traffic(), tmp_path / "outputs.npz")
    # All rows were equal, so that the first entry was the largest already, until it is not the first.
    assert changed.kind == "agreement" and changed.samples == 12
    with torch.no_grad():
        service.models.instances[0].model.weight[:, 3] = 99.0
    assert evaluate(service, traffic(), tmp_path / "outputs.npz").score < 0.2


def test_looking_does_not_change_the_model(linear: Path) -> None:
    service = loaded(linear)
    request = traffic().request(3)
    before = service.predict([request])[0].output
    service.evidence(traffic())
    model = service.models.instances[0].model
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(service.predict([request])[0].output, before)


def test_each_worker_has_a_model_of_its_own_unless_it_is_shared(linear: Path) -> None:
    own = load_models(linear, "adapter:Small", settings(workers=2)).instances
    shared = load_models(linear, "adapter:Small", settings(workers=2, shared_model=True)).instances
    assert own[0].model is not own[1].model
    assert shared[0].model is shared[1].model
    values = torch.ones(1, 8)
    with torch.no_grad():
        assert torch.equal(own[0].model(values), own[1].model(values)), "the same seed"


def test_pools_are_one_a_worker_and_only_for_the_default_collate(
    linear: Path, tmp_path: Path, write_workload: WriteWorkload
) -> None:
    models = load_models(linear, "adapter:Small", settings(workers=2, shared_model=True, buffer_pool=True))
    assert len(models.pools) == 2 and models.pools[0] is not models.pools[1]
    own = "\n    def collate(self, inputs):\n        return torch.stack(inputs)\n"
    folder = write_workload(tmp_path / "own", adapter=LINEAR.rstrip() + "\n" + own)
    with_own = load_models(folder, "adapter:Small", settings(buffer_pool=True))
    assert with_own.pools == []
    assert not pool_applies(with_own.adapter)


def test_warm_up_runs_every_size_up_to_the_largest_batch(linear: Path) -> None:
    service = loaded(linear, warmup_shapes=3, max_batch_size=6)
    # One input size, though three are asked for at most; batches of 1, 2, 4 and 6 of each that is run.
    assert service.warmup.batches == service.warmup.shapes * 4
    assert {key[0][0] for key in service.models.instances[0].seen} == {1, 2, 4, 6}
    assert effective("warmup.shapes", service)[0]
    assert not effective("warmup.shapes", loaded(linear))[0]


def test_a_change_that_a_model_cannot_take_is_told(tmp_path: Path, write_workload: WriteWorkload) -> None:
    refusing = "    def to(self, *a):\n        raise RuntimeError('fixed\\nweights')\n\n    def forward(self, x):"
    stubborn = NO_LINEAR.replace("    def forward(self, x):", refusing)
    folder = write_workload(tmp_path / "stubborn", adapter=stubborn)
    with pytest.raises(RunnerError, match=r"precision = 'bf16'.*RuntimeError: fixed weights"):
        load_models(folder, "adapter:Plain", settings(precision="bf16"))


def test_what_is_no_module_is_refused(tmp_path: Path, write_workload: WriteWorkload) -> None:
    folder = write_workload(tmp_path / "w", adapter=NO_LINEAR.replace("return Matrix()", "return 3"))
    with pytest.raises(RunnerError, match=r"Plain.load returned int; expected a torch.nn.Module"):
        load_models(folder, "adapter:Plain", settings())


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == "cpu"
    with pytest.raises(RunnerError, match="0 CUDA devices"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (resolve_device("auto"), resolve_device("cuda:1")) == ("cuda:0", "cuda:1")
    with pytest.raises(RunnerError, match="cuda:2"):
        resolve_device("cuda:2")


def test_a_compiler_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latfix.runners.model.shutil.which", lambda *_: None)
    assert "C++ compiler" in compiler_missing()
    monkeypatch.setattr(
        "latfix.runners.model.shutil.which", lambda name: f"/bin/{name}" if name == "clang++" else None
    )
    assert compiler_missing() == ""


def test_compiling_wraps_the_model_or_the_parts_that_it_names(
    linear: Path, tmp_path: Path, write_workload: WriteWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling itself takes many seconds; what is handed to the compiler, and how, is seen without."""
    given: list[tuple[Any, dict[str, Any]]] = []

    def compiled(what: Any, **how: Any) -> Any:
        given.append((what, how))
        return what

    import torch._inductor.config

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch._inductor.config, "freezing", False)
    load_models(linear, "adapter:Small", settings(compile="off"))
    assert given == []
    model = load_models(linear, "adapter:Small", settings(compile="dynamic")).instances[0].model
    assert given == [(model, {"dynamic": True})]
    assert torch._inductor.config.freezing
    given.clear()
    parts = NO_LINEAR.replace(
        "    def forward(self, x):",
        '    def compile_parts(self):\n        return ["once"]\n\n    def once(self, x):\n        return x\n\n'
        "    def forward(self, x):",
    )
    folder = write_workload(tmp_path / "parts", adapter=parts)
    model = load_models(folder, "adapter:Plain", settings(compile="dynamic")).instances[0].model
    assert [what.__name__ for what, _ in given] == ["once"]
    assert "once" in vars(model)


def test_a_compiled_model_is_not_looked_into(linear: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks would make it compile again."""
    monkeypatch.setattr(torch, "compile", lambda what, **_: what)
    service = loaded(linear, compile="dynamic")
    assert "modules" not in service.evidence(traffic())
    assert not effective("fuse.compile", service)[0], "no compilation happened"
