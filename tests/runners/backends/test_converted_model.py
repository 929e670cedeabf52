"""Models that another backend runs: same answers, variable sizes, and refusals with their reason."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from latfix.errors import InputError, RunnerError
from latfix.runners.backends import artifact_cache as cache
from latfix.runners.backends import converted_model as converted
from latfix.runners.backends.onnx_export import Exported, export
from latfix.runners.backends.requirements import backend_missing
from latfix.runners.fixes.fuse import onnxruntime as fuse_onnxruntime
from latfix.runners.fixes.fuse import openvino as fuse_openvino
from tests.conftest import write_workload
from tests.runners.backends import padded_service
from tests.runners.backends.padded_service import loaded, traffic, verified
from tests.runners.engine.served import loaded_service

PADDED = padded_service.PADDED.replace("EACH", "x")
BACKENDS = [
    pytest.param(
        name, marks=pytest.mark.skipif(bool(backend_missing(name)), reason=backend_missing(name) or "installed")
    )
    for name in ("onnxruntime", "openvino")
]
#: For behavior that does not depend on the backend.
EITHER = BACKENDS[:1]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for the tests of this file, so that the model is exported once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workload(tmp_path_factory.mktemp("converted") / "padded", adapter=PADDED)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_answers_at_every_size_and_verified(padded: Path, backend: str) -> None:
    plain, other = loaded(padded), loaded(padded, backend=backend, workers=2)
    requests = [traffic().request(k) for k in (0, 11, 3, 7, 7, 1)]
    for a, b in zip(plain.predict(requests), other.predict(requests), strict=True):
        assert set(a.output) == set(b.output) == {"each", "all"}, b.error
        # Batches may differ, and with them the padding at the end of answers.
        length = min(len(a.output["each"]), len(b.output["each"]))
        assert torch.allclose(a.output["each"][:length], b.output["each"][:length], rtol=1e-4, atol=1e-5)
    evidence = other.evidence(traffic())
    assert len(evidence["conversions"]) == 2, "one for each worker's model"
    one = evidence["conversions"][0]
    assert one["threads"] == 1 and one["deviation"] < 1e-4
    assert evidence["batches_replaced"] == evidence["batches_run"] > 0
    found = verified(fuse_onnxruntime.FIX if backend == "onnxruntime" else fuse_openvino.FIX, other)
    assert found.effective, found.evidence
    assert not verified(fuse_openvino.FIX if backend == "onnxruntime" else fuse_onnxruntime.FIX, other).effective
    assert not verified(fuse_onnxruntime.FIX, plain).effective


@pytest.mark.parametrize("backend", EITHER)
def test_a_size_that_traffic_never_had_runs_as_the_original_and_is_not_counted(padded: Path, backend: str) -> None:
    service = loaded(padded, n=1, backend=backend, max_batch_size=1)
    outcomes = service.predict([traffic().request(k) for k in (0, 5)])
    assert [outcome.error for outcome in outcomes] == ["", ""]
    evidence = service.evidence(traffic())
    assert (evidence["batches_run"], evidence["batches_replaced"]) == (2, 1)
    assert evidence["warmup_s"] >= 0.9 * evidence["conversions"][0]["seconds"] > 0, "part of the time to start"
    assert not verified(fuse_onnxruntime.FIX, service).effective


@pytest.mark.parametrize("backend", EITHER)
def test_inputs_in_another_order_run_on_the_original(tmp_path: Path, backend: str) -> None:
    """Both inputs have the same size, so only their names distinguish them."""
    source = """
    import torch
    from latfix import Workload

    class Net(torch.nn.Module):
        def forward(self, plus, minus):
            return plus - minus

    class Swapped(Workload):
        def load(self, device):
            return Net()

        def prepare(self, request):
            value = float(request.features["value"])
            given = {"plus": torch.full((3,), value), "minus": torch.ones(3)}
            return given if value < 12 else dict(reversed(given.items()))
    """
    folder = write_workload(tmp_path / "swapped", adapter=source)
    service = loaded_service(folder, "adapter:Swapped", warm=traffic(), backend=backend)
    answers = [outcome.output.tolist() for outcome in service.predict([traffic(20).request(k) for k in (5, 19)])]
    assert answers == [[4.0] * 3, [18.0] * 3]
    evidence = service.evidence(traffic())
    assert (evidence["batches_run"], evidence["batches_replaced"]) == (2, 1)


@pytest.mark.parametrize("backend", EITHER)
def test_a_model_that_changes_its_inputs_in_place_is_compared_on_the_same_inputs(
    tmp_path: Path, backend: str
) -> None:
    """The original ran first and scaled them, so that the converted model answered something else."""
    twice = "scale = scale * 2.0 if torch.compiler.is_exporting() else scale.mul_(2.0)"
    inside = f"        {twice}\n        x = torch"
    folder = write_workload(tmp_path / "w", adapter=PADDED.replace("        x = torch", inside))
    assert loaded(folder, backend=backend).evidence(traffic())["conversions"][0]["deviation"] < 1e-4


#: An argument of the model that is no tensor, and a model that keeps a count of its calls.
SWITCH = """
    def collate(self, inputs):
        return {**super().collate(inputs), "double": SWITCH}
"""
COUNTING = "        self.calls = getattr(self, 'calls', 0) + 1\n        return {"


def _answering(tmp_path: Path, answer: str, switch: str = "True") -> Path:
    """The padded workload, with more fields in its answer."""
    adapter = PADDED.replace("tokens, scale)", "tokens, scale, double)").replace(
        '        return {"each', f'{COUNTING}"each'
    )
    adapter = adapter.replace('"each": x', f'"each": x * (2 if double else 1), {answer}')
    return write_workload(tmp_path / "w", adapter=adapter + SWITCH.replace("SWITCH", switch))


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_and_texts_are_constants_of_a_converted_model(tmp_path: Path, backend: str) -> None:
    constants = {"loss": 0, "rate": 0.5, "kind": "padded", "none": None, "more": ["tensor", True]}
    folder = _answering(tmp_path, repr(constants)[1:-1].replace("['tensor', True]", "('tensor', True)"))
    plain, other = loaded(folder), loaded(folder, backend=backend)
    requests = [traffic().request(k) for k in (0, 11, 7)]
    for a, b in zip(plain.predict(requests), other.predict(requests), strict=True):
        assert torch.allclose(a.output["all"], b.output["all"], rtol=1e-4, atol=1e-5), b.error
        kept = {key: value for key, value in b.output.items() if not isinstance(value, torch.Tensor)}
        assert kept == {**constants, "more": ("tensor", True)}
    evidence = other.evidence(traffic())
    assert evidence["batches_replaced"] == evidence["batches_run"] > 0


@pytest.mark.skipif(bool(backend_missing("onnxruntime")), reason="needs the exporter")
@pytest.mark.parametrize(
    ("answer", "switch", "message"),
    [
        (
            "'n': tokens.shape[1]",
            "True",
            "its output 'n' is 2 for one batch and 6 for another; only tensors may vary",
        ),
        ("'most': float(scale.max())", "True", "its output 'most' is 1.0 for one batch and "),
        (
            "'names': ['a'] * len(tokens)",
            "True",
            "its output 'names.1' is absent or a tensor for one batch and 'a' for",
        ),
        ("'calls': self.calls", "True", "its output 'calls' is 1 for one batch and 2 for another"),
        ("'x': 1", "len(inputs) > 1", "its input 'double' is False for one batch and True for another"),
    ],
    ids=["a length", "a number", "a list by request", "a state", "an input"],
)
def test_numbers_that_differ_between_batches_are_refused(
    tmp_path: Path, answer: str, switch: str, message: str
) -> None:
    with pytest.raises(RunnerError, match=f"cannot be converted: {re.escape(message)}"):
        loaded(_answering(tmp_path, answer, switch), backend="onnxruntime")


@pytest.mark.skipif(bool(backend_missing("onnxruntime")), reason="needs the exporter")
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("{'large': bool(x.sum() > 8)}", "its output 'large' is False for one batch and True for another"),
        ("'large' if x.sum() > 8 else 'small'", "its output is 'small' for one batch and 'large' for another"),
        ("'cat'", "there is no tensor among its outputs"),
    ],
    ids=["a field", "alone", "nothing else"],
)
def test_numbers_are_compared_for_other_values_of_the_only_shape(tmp_path: Path, answer: str, message: str) -> None:
    source = """
    import torch
    from latfix import Workload

    class Net(torch.nn.Module):
        def forward(self, x):
            return ANSWER

    class Padded(Workload):
        def load(self, device):
            return Net()

        def prepare(self, request):
            return torch.full((3,), float(request.features["value"]))
    """
    folder = write_workload(tmp_path / "w", adapter=source.replace("ANSWER", answer))
    with pytest.raises(RunnerError, match=f"the model cannot be converted: {message}"):
        loaded(folder, backend="onnxruntime", max_batch_size=1)


@pytest.fixture
def cached_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh export takes the file of an earlier one, for tests in which the file is not the point."""

    def reused(*arguments: Any, fresh: bool) -> Exported:
        return replace(export(*arguments), cached=not fresh)

    monkeypatch.setattr(converted, "export", reused)


def changed(monkeypatch: pytest.MonkeyPatch, factor_of: Callable[[Exported], float]) -> None:
    """Makes loaded files multiply their answers by a factor."""
    load = converted.load_graph

    def other(exported: Exported, *given: Any) -> Any:
        graph, factor = load(exported, *given), factor_of(exported)
        run = graph.run
        monkeypatch.setattr(graph, "run", lambda arrays: [array * factor for array in run(arrays)])
        return graph

    monkeypatch.setattr(converted, "load_graph", other)


@pytest.mark.usefixtures("cached_export")
@pytest.mark.parametrize("backend", EITHER)
def test_answers_that_differ_are_refused_with_figures(
    padded: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, lambda _: 1.02)
    with pytest.raises(
        RunnerError, match=r"gives other answers .* 0\.02 of the largest number; expected at most 0\.01"
    ):
        loaded(padded, backend=backend)


@pytest.mark.parametrize("backend", EITHER)
def test_a_file_of_other_code_with_the_same_weights_is_not_used(
    padded: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code outside the workload's folder is not part of the cache's key."""
    loaded(padded, backend=backend)
    seen = list[bool]()

    def stale(exported: Exported) -> float:
        seen.append(exported.cached)
        return 2.0 if exported.cached else 1.0

    with monkeypatch.context() as patch:
        changed(patch, stale)
        assert not loaded(padded, backend=backend).evidence(traffic())["conversions"][0]["cached"]
    assert seen == [True, False]
    assert loaded(padded, backend=backend).evidence(traffic())["conversions"][0]["cached"], "the new one is"


@pytest.mark.skipif(bool(backend_missing("onnxruntime")), reason="needs the exporter")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "        x = torch",
            "        for _ in range(tokens.shape[1]):\n            pass\n        x = torch",
            "UserError: You marked .* as dynamic but your code specialized it to be a constant",
        ),
        (
            "        x = torch",
            "        for _ in range(int(tokens.sum())):\n            pass\n        x = torch",
            r"\w+: .* \(adapter.py:\d+\)$",
        ),
        (
            "    def prepare",
            "    def collate(self, inputs):\n        return {**super().collate(inputs), 'names': {'a'}}\n\n"
            "    def prepare",
            "among its inputs, found set in 'names' where tensors",
        ),
    ],
    ids=["a loop over a length", "a loop over data", "no tensor"],
)
def test_a_failed_export_is_explained_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    folder = write_workload(tmp_path / "w", adapter=PADDED.replace("scale)", "scale, **_)").replace(old, new))
    with pytest.raises(RunnerError, match=f"cannot be exported to ONNX: {message}") as raised:
        loaded(folder, backend="onnxruntime")
    assert "\n" not in raised.value.message and len(raised.value.message) < 400


@pytest.mark.usefixtures("cached_export")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_that_does_not_import_is_an_error_without_fallback(
    padded: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is installed, but importing it raises, for example because a shared library is missing."""
    loaded(padded)
    monkeypatch.setitem(sys.modules, backend, None)
    monkeypatch.setattr(converted, "require_backend", lambda _: None)
    with pytest.raises(RunnerError, match=f"converted for {backend} does not run: .*{backend}"):
        loaded(padded, backend=backend)


def test_recently_used_entries_stay_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_KEPT", 2)
    for age, name in ((300, "old-but-used"), (200, "old"), (100, "newer")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    cache.used(tmp_path / "old-but-used")
    cache.used(tmp_path / "gone")
    (tmp_path / "made").mkdir()
    cache.keep(tmp_path / "made", tmp_path / "kept")
    assert {entry.name for entry in tmp_path.iterdir()} == {"kept", "old-but-used"}


def test_bfloat16_is_used_only_if_requested(padded: Path) -> None:
    pytest.importorskip("openvino")
    if backend_missing("openvino"):
        pytest.skip(backend_missing("openvino"))
    plain = loaded(padded, backend="openvino").evidence(traffic())["conversions"][0]
    assert not any("bf16" in name.lower() for name in plain["precisions"]), plain
    half = loaded(padded, backend="openvino", precision="bf16")
    if any("bf16" in name.lower() for name in half.evidence(traffic())["conversions"][0]["precisions"]):
        half.predict([traffic().request(3)])
        assert verified(fuse_openvino.FIX, half).effective


@pytest.mark.skipif(bool(backend_missing("openvino")), reason="needs OpenVINO")
def test_a_model_in_bfloat16_answers_in_bfloat16(tmp_path: Path) -> None:
    """NumPy has no bfloat16; and its rounding is no reason to refuse a conversion."""
    adapter = padded_service.PADDED.replace("EACH", "x").replace("return Net()", "return Net().bfloat16()")
    folder = write_workload(
        tmp_path / "half", adapter=adapter.replace("torch.tensor(1.0 + k)", "torch.tensor(1 + k)")
    )
    plain, other = loaded(folder), loaded(folder, backend="openvino")
    requests = [traffic().request(k) for k in (0, 11, 3)]
    for a, b in zip(plain.predict(requests), other.predict(requests), strict=True):
        assert a.output["all"].dtype == b.output["all"].dtype == torch.bfloat16, b.error
        assert torch.allclose(a.output["all"], b.output["all"], rtol=0.1, atol=0.1)
    assert verified(fuse_openvino.FIX, other).effective


def test_a_backend_that_is_not_installed(padded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert backend_missing("torch") == ""
    assert backend_missing("onnxruntime").endswith("install latfix[onnx]")
    with pytest.raises(InputError, match=r"backend = 'openvino': needs openvino and onnx and onnxscript"):
        loaded(padded, backend="openvino")
