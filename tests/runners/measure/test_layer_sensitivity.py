"""Which layers are found to matter, and what is kept of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from latfix.runners.measure.accuracy import Accuracy
from latfix.runners.measure.layer_sensitivity import (
    Layer,
    Sensitivity,
    _answer,
    _change,
    _choose,
    _fewest,
    _savings,
    measure,
)
from latfix.runners.model_transforms import layer_times as layer_timing
from latfix.runners.model_transforms.layer_times import layer_times
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload

#: Layer 1 has one weight a thousand times as large as the others of its row, which int8 rounds away; the answer
#: depends on the small ones.
FRAGILE = """
import torch
from latfix import Request, Workload

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(256, 256)
        self.fragile = torch.nn.Linear(256, 256)
        self.last = torch.nn.Linear(256, 256)
        with torch.no_grad():
            self.fragile.weight[:, 0] = 1000.0
            self.first.weight[0] = 0.0
            self.first.bias[0] = 0.0

    def forward(self, x):
        return self.last(torch.relu(self.fragile(torch.relu(self.first(x)))))

class Fragile(Workload):
    def load(self, device):
        return Net()

    def prepare(self, request):
        return torch.randn(64, 256, generator=torch.Generator().manual_seed(int(request.features["value"])))

    def finish(self, output, request):
        return int(output.sum(0).argmax())
"""


def traffic(n: int = 40) -> Traffic:
    return Traffic.plain(np.arange(n) * 1_000_000, features={"value": np.arange(n)})


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workload(tmp_path_factory.mktemp("sensitivity") / "fragile", adapter=FRAGILE)


def found_in(folder: Path, budget_s: float = 60.0, **values: Any) -> Sensitivity:
    settings = RunnerSettings(device="cpu", intra_op_threads=1, **values)
    return measure(
        folder, "adapter:Fragile", settings, traffic(), precision="int8_dynamic", max_drop=0.6, budget_s=budget_s
    )


def test_the_layer_that_int8_ruins_is_found(fragile: Path) -> None:
    found = found_in(fragile)
    effects = {layer.names[0]: layer.effect for layer in found.layers}
    assert effects["fragile"] > 5 * max(effects["first"], effects["last"]) > 0
    if not found.trials:  # next to busy neighbors, int8 may not be faster in any layer
        assert "no layer of 3 is faster" in found.reason
        return
    assert found.trials[0]["kept"] == 0
    if found.trials[0]["allowed"]:  # where this machine is not faster with int8 in that layer, it was left out
        assert "fragile" in found.keep
        return
    assert "fragile" in found.keep, found
    assert max(trial["score"] for trial in found.trials if trial["allowed"]) > found.trials[0]["score"]


def test_layers_that_are_kept_anyway_are_not_measured(fragile: Path) -> None:
    found = found_in(fragile, keep_precision=("fragile",))
    assert {layer.names[0] for layer in found.layers} == {"first", "last"}


def test_services_are_loaded_one_after_the_other(fragile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may have no room for two; those that are done with refer to themselves, and must go all the same."""
    load, models, alive = Service.load, list[weakref.ref[Any]](), list[int]()

    def loaded(service: Service) -> None:
        alive.append(sum(model() is not None for model in models))
        load(service)
        models.append(weakref.ref(service.models.instances[0].model))

    monkeypatch.setattr(Service, "load", loaded)
    # Also where nothing is found to be faster, the layers are taken for it.
    monkeypatch.setattr("latfix.runners.measure.layer_sensitivity._saved_ms", lambda *_: 1.0)
    found = found_in(fragile)
    assert len(found.trials) >= 2 and len(models) >= 3
    assert set(alive) == {0}


def test_without_time_layers_are_measured_together(fragile: Path) -> None:
    found = found_in(fragile, budget_s=0.0)
    assert [layer.names for layer in found.layers] == [("first", "fragile", "last")]


#: Its score is lost as soon as any layer answers something else.
STRICT = """
    def evaluate(self, predict):
        requests = [Request(id=str(k), arrival_s=0.0, features={"value": k}) for k in range(16)]
        exact = Net().eval()
        with torch.no_grad():
            right = [exact(self.prepare(request)[None])[0].sum(0) for request in requests]
        return sum(torch.allclose(a, b, rtol=1e-5) for a, b in zip(predict(requests), right)) / 16
"""


def test_if_accuracy_depends_on_every_layer_there_is_no_choice(tmp_path: Path) -> None:
    source = FRAGILE.replace("int(output.sum(0).argmax())", "output.sum(0)") + STRICT
    folder = write_workload(tmp_path / "strict", adapter=source)
    settings = RunnerSettings(device="cpu", intra_op_threads=1)
    found = measure(
        folder, "adapter:Fragile", settings, traffic(), precision="int8_dynamic", max_drop=0.01, budget_s=60.0
    )
    assert found.score == 1.0 and found.keep == {}
    useful = [layer for layer in found.layers if layer.kept != "no gain"]
    if useful:  # all but the cheapest were left out in the last trial
        assert found.trials[0]["score"] == 0.0 and max(trial["kept"] for trial in found.trials) == len(useful) - 1
    assert "is not kept even with" in found.reason if useful else "is faster" in found.reason


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_layers_of_the_frameworks_own_encoder_are_measured(tmp_path: Path) -> None:
    """In inference one fused kernel replaces them, and would ignore a changed layer."""
    encoder = "torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 1)"
    source = FRAGILE.replace("return Net()", f"return {encoder}")
    folder = write_workload(tmp_path / "encoder", adapter=source)
    settings = RunnerSettings(device="cpu", intra_op_threads=1)
    found = measure(
        folder, "adapter:Fragile", settings, traffic(), precision="int8_dynamic", max_drop=0.6, budget_s=60.0
    )
    assert {layer.names for layer in found.layers} == {("layers.0.linear1",), ("layers.0.linear2",)}
    assert all(layer.effect > 0 for layer in found.layers)
    assert torch.backends.mha.get_fastpath_enabled(), "as it was before"


def test_of_classes_the_share_that_changed_counts() -> None:
    exact, changed = [[np.array([1, 2, 3, 4])]], [[np.array([1, 2, 3, 5])]]
    assert _change(exact, exact) == 0.0
    assert _change(exact, changed) == pytest.approx(0.25**0.5)


def test_an_answer_with_more_detections_changed_as_a_whole() -> None:
    """A layer that changes how many boxes are found must not seem to change nothing."""
    boxes, more = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
    assert _change([[boxes], [boxes]], [[boxes], [more]]) == pytest.approx(0.5**0.5)
    assert _change([[boxes]], [[boxes, boxes]]) == 1.0, "one output for each"


def test_outputs_of_any_type_are_compared_and_inputs_stay_as_they_are() -> None:
    """Complex numbers are no classes, and a model may return an object or change its inputs in place."""

    def model(x: torch.Tensor) -> Any:
        return SimpleNamespace(spectrum=torch.complex(x.mul_(2.0), x)).__dict__

    x = torch.ones(4)
    exact, again = _answer(model, x), _answer(model, x)
    assert _change([exact], [again]) == 0.0 and torch.equal(x, torch.ones(4))
    assert 0 < _change([exact], [_answer(model, 1.001 * x)]) < 0.01


def chosen(
    layers: list[Layer], accurate: Callable[[Collection[str]], float], left: list[float] | None = None, **more: Any
) -> Sensitivity:
    found = Sensitivity(precision=more.get("precision", "int8_dynamic"), layers=layers, score=0.9)
    times = iter(left) if left is not None else None

    def accuracy_of(keep: Collection[str]) -> Accuracy:
        score = accurate(keep)
        loss = 0.9 - score
        return Accuracy(score=score, kind="evaluate", samples=1000, loss=loss, loss_lo=loss, loss_hi=loss)

    _choose(found, accuracy_of, 0.01, lambda: 1e9 if times is None else next(times, -1.0))
    return found


def layers() -> list[Layer]:
    return [
        Layer(names=("a",), effect=0.9, saves_ms=1.0),
        Layer(names=("b",), effect=0.2, saves_ms=0.1),
        Layer(names=("c",), effect=0.2, saves_ms=1.0),
        Layer(names=("d",), effect=0.1, saves_ms=2.0),
        Layer(names=("e",), effect=0.5, saves_ms=0.0),
    ]


def test_layers_that_pay_only_compiled_are_ordered_by_their_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layer by layer, torchao's are slower than the model's, and all would be left out."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 8))
    names, batch = ["0", "1", "2"], torch.randn(64, 512)
    monkeypatch.setattr("latfix.runners.measure.layer_sensitivity.pays_only_compiled", lambda *_: True)
    with torch.no_grad():
        saves = _savings(model, names, batch, "int8_dynamic", 1.0)
        times = layer_times(model, names, batch, (), 1.0)
    assert set(saves) == set(times) == set(names) and all(len(time) == 1 for time in times.values())
    assert saves["1"] > saves["2"] > 0 and times["1"] > times["2"]


@pytest.mark.parametrize(("pass_s", "turns"), [(1e-6, 2), (1.0, 1)])
def test_slow_layers_are_timed_once_in_each_precision(
    monkeypatch: pytest.MonkeyPatch, pass_s: float, turns: int
) -> None:
    clock, passes = count(0.0, pass_s), count()
    monkeypatch.setattr(layer_timing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(layer_timing, "_timed", lambda steps, _: [5 + 0 * next(passes)] * len(steps))
    model, precisions = torch.nn.Sequential(torch.nn.Linear(16, 16)), ("bf16", "int8_dynamic")
    with torch.no_grad():
        found = layer_times(model, ["0"], torch.ones(2, 16), precisions, 0.0)  # type: ignore[arg-type]
    assert found == {"0": (5.0, 5.0, 5.0)} and next(passes) == 2 * 2 * turns


def test_the_fewest_layers_with_the_highest_price_are_kept() -> None:
    found = chosen(layers(), lambda keep: 0.895 if {"a", "b"} <= set(keep) else 0.8)
    assert set(found.keep) == {"e", "b", "a"}
    assert {layer.names[0]: layer.kept for layer in found.layers} == {
        "a": "accuracy",
        "b": "accuracy",
        "c": "",
        "d": "",
        "e": "no gain",
    }
    assert found.keep["a"] == 0.9


def test_layers_without_gain_alone_may_be_enough() -> None:
    found = chosen(layers(), lambda keep: 0.9 if "e" in keep else 0.5)
    assert set(found.keep) == {"e"} and len(found.trials) == 1


def test_without_a_loss_no_layer_is_kept() -> None:
    found = chosen(layers()[:4], lambda _: 0.9)
    assert found.keep == {} and "kept with all 4 layers" in found.reason


def test_if_nothing_helps_no_layer_is_kept() -> None:
    found = chosen(layers(), lambda _: 0.5)
    assert found.keep == {} and "3 of 4 layers" in found.reason


def test_if_no_layer_is_faster_nothing_is_tried() -> None:
    found = chosen([Layer(names=("e",), effect=0.5, saves_ms=0.0)], lambda _: 0.9)
    assert found.keep == {} and found.trials == [] and "no layer of 1 is faster" in found.reason


def test_in_bfloat16_every_layer_may_be_changed() -> None:
    found = chosen(layers(), lambda keep: 0.895 if "e" in keep else 0.8, precision="bf16")
    assert set(found.keep) == {"e"}


def test_the_search_ends_with_its_time() -> None:
    """The first trial takes 10 s; with 12 s left, another one is not begun."""
    found = chosen(layers(), lambda keep: 0.895 if len(keep) >= 3 else 0.8, left=[22.0, 12.0, 12.0])
    assert found.keep == {} and len(found.trials) == 1
    assert found.reason.startswith("time was up after 1 trial; with 0 of 4 layers left out: accuracy 0.9 -> 0.8")


def test_layers_that_stand_out_are_tried_first() -> None:
    """One of nine makes nearly all of the change: it is tried alone, and is enough."""
    many = [Layer(names=(str(k),), effect=0.01, saves_ms=1.0) for k in range(8)]
    found = chosen(
        [*many, Layer(names=("bad",), effect=2.0, saves_ms=1.0)], lambda keep: 0.9 if "bad" in keep else 0.1
    )
    assert [trial["kept"] for trial in found.trials] == [0, 1] and set(found.keep) == {"bad"}


@pytest.mark.parametrize("enough", [0, 1, 4, 7, 8])
def test_bisection_finds_the_fewest(enough: int) -> None:
    counts: list[int] = []

    def allowed(count: int) -> bool:
        counts.append(count)
        return count >= enough

    for first in range(10):
        assert _fewest(8, allowed, lambda: True, first=first) == (enough if enough < 8 else None)
        assert len(set(counts)) == len(counts) <= (4 if not first else 7)
        counts.clear()
