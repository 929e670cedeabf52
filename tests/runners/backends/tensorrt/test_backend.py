"""``backend = "tensorrt"`` through the whole service: profiles, partition, cache, comparison, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from latfix.errors import InputError, RunnerError
from latfix.runners.backends.replaced_model import export_program
from latfix.runners.calls.tensor_tree import flatten, shapes_of
from latfix.runners.fixes.fuse import openvino as fuse_openvino
from latfix.runners.fixes.fuse import tensorrt as fuse_tensorrt
from latfix.runners.service import load as model
from latfix.runners.service.loaded_service import Service
from latfix.runners.service.warm_up import traffic_shapes
from tests.conftest import write_workload
from tests.runners.backends import padded_service
from tests.runners.backends.padded_service import loaded, traffic

#: The running sum stays in PyTorch.
PADDED = padded_service.PADDED.replace("EACH", "torch.cumsum(x, 1)")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def programs() -> dict[str, Any]:
    """Exported programs by the sizes of their inputs."""
    return {}


@pytest.fixture(autouse=True)
def exported_once(programs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports the model once for each kind of sizes: all tests of this file have the same model."""

    def export(model: torch.nn.Module, example: Any, dynamic: Any) -> Any:
        key = repr(([tuple(tensor.shape) for tensor in flatten(example)[0]], dynamic))
        if key not in programs:
            programs[key] = export_program(model, example, dynamic)
        return programs[key]

    monkeypatch.setattr("latfix.runners.backends.tensorrt.program.export_program", export)


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    return write_workload(tmp_path / "padded", adapter=PADDED)


def compiled(folder: Path, n: int = 12, **values: Any) -> Service:
    return loaded(folder, n, backend="tensorrt", **values)


def conversion(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.evidence(traffic())["conversions"][0]
    return found


def verified(service: Service, fix: Any = fuse_tensorrt.FIX) -> Any:
    return padded_service.verified(fix, service)


def serve(service: Service, *values: int) -> list[Any]:
    outcomes = service.predict([traffic(40).request(k) for k in values])
    assert [outcome.error for outcome in outcomes] == [""] * len(values)
    return [outcome.output for outcome in outcomes]


def program_of(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache" / "latfix" / "tensorrt").glob("*/program.pt2")
    return file


def test_the_same_answers_at_every_size_and_verified(padded: Path, package: Any) -> None:
    plain, other = loaded(padded), compiled(padded, workers=2)
    requests = (0, 11, 3, 7, 7, 1)
    for a, b in zip(serve(plain, *requests), serve(other, *requests), strict=True):
        length = min(len(a["each"]), len(b["each"]))  # batches, and so padding, may differ
        assert torch.allclose(a["each"][:length], b["each"][:length], rtol=1e-4, atol=1e-5)
    for k in requests:
        (a,), (b,) = serve(plain, k), serve(other, k)
        assert torch.allclose(a["all"], b["all"], rtol=1e-4, atol=1e-5)
    evidence = other.evidence(traffic())
    assert evidence["batches_replaced"] == evidence["batches_run"] > 0
    assert evidence["outside"] == {"batches": 0, "shapes": []}
    assert len(evidence["conversions"]) == 2, "one for each worker's model"
    one = conversion(other)
    assert one["deviation"] < 1e-4 and not one["cached"] and one["kept"] == ""
    assert package.options[0]["device"] == torch.device("cpu")


def test_what_ran_where_is_in_the_evidence(padded: Path, package: Any) -> None:
    service = compiled(padded)
    serve(service, 0, 3, 5)
    partition = conversion(service)["partition"]
    assert partition["outside"] == {"aten.cumsum": 1}
    assert partition["engines"] == 2 and partition["inside"] > 5 and 0.8 < partition["share"] < 1
    found = verified(service)
    assert found.effective, found.evidence
    assert "operators in 2 engines, 1 left in PyTorch (aten.cumsum)" in found.evidence
    assert "batches" in found.evidence and "shapes (1..4..4), (1..4..4, 2..8..13)" in found.evidence
    assert not verified(service, fuse_openvino.FIX).effective
    assert not verified(loaded(padded)).effective
    package.stays = ("cumsum", "mul", "add", "relu", "linear", "sum", "unsqueeze", "select")
    mostly = compiled(padded, max_batch_size=3)
    serve(mostly, 0)
    assert conversion(mostly)["partition"]["share"] < 0.5 and not verified(mostly).effective


@pytest.mark.parametrize(
    ("n", "most", "profile"),
    [
        (300, 4, ["(1..4..4)", "(1..4..4, 2..153..301)"]),
        (1, 1, ["(1)", "(1, 2)"]),
        (12, 2, ["(1..2..3)", "(1..2..3, 2..8..13)"]),  # batches of two can be traced
    ],
)
def test_the_profile_is_of_the_traffic_and_what_never_varies_is_fixed(
    padded: Path, package: Any, n: int, most: int, profile: list[str]
) -> None:
    service = compiled(padded, n=n, max_batch_size=most)
    assert conversion(service)["profile"] == profile
    serve(service, 0)
    given = package.inputs[0][1].given
    assert given.pop("dtype") == torch.int64, "token ids stay whole numbers"
    three = {"min_shape": (1, 2), "opt_shape": (4, 153), "max_shape": (4, 301)}
    assert n == 12 or given == (three if n == 300 else {"shape": (1, 2)})


def test_shapes_outside_the_profile_run_on_the_original_and_are_reported(padded: Path, package: Any) -> None:
    service = compiled(padded, n=4, max_batch_size=1)
    serve(service, 0, 30, 3, 20)
    evidence = service.evidence(traffic(4))
    assert (evidence["batches_run"], evidence["batches_replaced"]) == (4, 2)
    assert evidence["outside"]["batches"] == 2 and "(1, 32)" in evidence["outside"]["shapes"][0]
    assert "2 batch(es) of shapes that no engine was built for" in service.models.outside.note()
    found = verified(service)
    assert not found.effective and "2 of other shapes ran on the original" in found.evidence
    serve(service, 0)
    assert service.evidence(traffic(4))["outside"]["batches"] == 0, "each replay counts from zero"
    assert package.built == 2


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_precision_is_requested_and_answers_keep_their_dtype(
    padded: Path, package: Any, precision: str, dtype: torch.dtype
) -> None:
    service = compiled(padded, precision=precision)
    assert package.options[0]["autocast_low_precision_type"] is dtype and package.options[0]["enable_autocast"]
    (answer,) = serve(service, 5)
    assert {tensor.dtype for tensor in answer.values()} == {torch.float32}
    assert 1e-5 < conversion(service)["deviation"] < 0.05, "accuracy judges its error"


def test_an_older_compiler_gets_its_own_options(padded: Path, package: Any) -> None:
    options: dict[str, Any] = {}

    def older(
        exported_program: Any,
        inputs: Any = None,
        *,
        device: Any = None,
        enabled_precisions: Any = None,
        use_explicit_typing: bool = True,
        **kwargs: Any,
    ) -> Any:
        options.update(kwargs, enabled_precisions=enabled_precisions, explicit=use_explicit_typing)
        return package.compile(exported_program, inputs, device=device)

    package.module.dynamo.compile = older
    compiled(padded, precision="fp16")
    assert options == {"enabled_precisions": {torch.float32, torch.float16}, "explicit": False}


def test_a_compiler_without_options_for_precision(padded: Path, package: Any) -> None:
    def bare(exported_program: Any, inputs: Any = None, *, device: Any = None, **kwargs: Any) -> Any:
        return package.compile(exported_program, inputs, device=device, **kwargs)

    package.module.dynamo.compile = bare
    with pytest.raises(
        RunnerError, match=r"torch_tensorrt 2\.13\.0 has no option for it \(neither enable_autocast nor"
    ):
        compiled(padded, precision="bf16")
    compiled(padded)
    assert package.options[-1]["kwargs"] == {}, "the compiler would silently ignore unknown options"


def test_a_second_process_loads_the_program(padded: Path, package: Any, tmp_path: Path) -> None:
    compiled(padded)
    assert package.built == 2 and program_of(tmp_path).is_file()
    again = compiled(padded)
    assert package.built == 2 and package.loaded == 1
    one = conversion(again)
    assert one["cached"] and one["partition"]["outside"] == {"aten.cumsum": 1} and one["partition"]["inside"] > 5
    serve(again, 0, 3)
    assert verified(again).effective and "found in the cache" in verified(again).evidence


def test_other_shapes_precision_or_versions_are_other_programs(
    padded: Path, package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(padded)
    compiled(padded, precision="bf16")
    compiled(padded, n=9)
    package.module.__version__ = "2.13.1"
    compiled(padded)
    monkeypatch.setattr("latfix.runners.backends.tensorrt.convert.device_name", lambda _: "another GPU (sm_90)")
    compiled(padded)
    assert package.loaded == 0 and package.built == 10


def test_a_damaged_program_is_built_again_from_its_engines(padded: Path, package: Any, tmp_path: Path) -> None:
    compiled(padded)
    program_of(tmp_path).write_bytes(b"torn")
    one = conversion(compiled(padded))
    assert not one["cached"] and "does not load" in one["discarded"]
    assert (package.built, package.reused) == (2, 2)
    for blob in program_of(tmp_path).parent.glob("engines/*/blob.bin"):
        blob.write_bytes(b"torn")
    program_of(tmp_path).unlink()
    compiled(padded)
    assert (package.built, package.reused) == (4, 2), "engines that cannot be read are built again"


def test_an_engine_that_cannot_be_refitted_is_built_without_a_cache(padded: Path, package: Any) -> None:
    package.refittable = False
    service = compiled(padded)
    one = conversion(service)
    assert "engines are not cached (RuntimeError: layer is not refittable)" in one["kept"]
    serve(service, 0, 3)
    assert verified(service).effective and "not cached" in verified(service).evidence
    assert conversion(compiled(padded))["cached"], "the program itself is"


def execute_engine(*_: Any) -> None:
    """The operator's name in a saved program."""


class Stale(torch.nn.Module):
    """A cached program of a model with the same weights but other code."""

    def __init__(self, engines: int) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        for _ in range(engines):
            self.graph.call_function(execute_engine)

    def forward(self, *tensors: torch.Tensor) -> Any:
        return torch.zeros(*tensors[1].shape, 8), torch.zeros(len(tensors[0]), 3)


@pytest.mark.parametrize(("engines", "message"), [(2, "gives other answers"), (1, "has 1 engine; expected 2")])
def test_a_stale_program_is_discarded(padded: Path, package: Any, engines: int, message: str) -> None:
    compiled(padded)
    (token,) = package.files
    package.files[token] = lambda: Stale(engines)
    one = conversion(compiled(padded))
    assert not one["cached"] and message in one["discarded"] and one["deviation"] < 1e-4
    assert conversion(compiled(padded))["cached"], "the new one took its place"


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("wrong", 0.5, "gives other answers than the original: the largest deviation over"),
        ("stays", ("aten",), r"TensorRT takes none of the model's \d+ operators \(aten\.cumsum, aten\.embedding"),
    ],
)
def test_a_wrong_or_empty_program_is_refused_and_not_cached(
    padded: Path, package: Any, tmp_path: Path, attribute: str, value: Any, message: str
) -> None:
    setattr(package, attribute, value)
    with pytest.raises(RunnerError, match=message):
        compiled(padded)
    assert not list((tmp_path / "cache" / "latfix" / "tensorrt").glob("*/program.pt2"))


def test_a_program_that_cannot_be_saved_still_serves(padded: Path, package: Any) -> None:
    package.unsaved = NotImplementedError("SymInt in a saved program\nand pages more")
    service = compiled(padded)
    assert "cannot be saved (NotImplementedError: SymInt in a saved program)" in conversion(service)["kept"]
    serve(service, 0, 1)
    assert "compiled again at each start" in verified(service).evidence
    compiled(padded)
    assert (package.built, package.reused) == (2, 2), "its engines were"


def test_a_compiler_that_fails_is_quoted_in_one_line(
    padded: Path, package: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        print("a page of progress")
        raise RuntimeError("Engine building failed\n" + "and why\n" * 40)

    package.module.dynamo.compile = fail
    with pytest.raises(RunnerError) as caught:
        compiled(padded)
    assert caught.value.message == "the model cannot be compiled for TensorRT: RuntimeError: Engine building failed"
    assert capsys.readouterr() == ("", "")


def test_workers_that_share_a_model_take_turns(padded: Path, package: Any) -> None:
    service = compiled(padded, workers=4, shared_model=True, max_batch_size=1)
    serve(service, *range(12), *range(12))
    assert len(service.models.conversions) == 1 and package.built == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"precision": "int8_dynamic"}, "found precision = 'int8_dynamic'; expected 'default' or 'bf16' or 'fp16'"),
        ({"compile": "dynamic"}, "found compile = 'dynamic'"),
        ({"precision": "bf16", "keep_precision": ("mix",)}, "found keep_precision"),
    ],
)
def test_settings_that_do_not_go_with_it(padded: Path, package: Any, values: dict[str, Any], message: str) -> None:
    assert package.module.__version__
    with pytest.raises(InputError, match=message):
        compiled(padded, **values)


def test_without_a_gpu(padded: Path, package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert package.built == 0
    monkeypatch.setitem(model.BACKEND_DEVICES, "tensorrt", "cuda")
    with pytest.raises(InputError, match="found device cpu; expected a CUDA device; use backend = 'torch'"):
        compiled(padded)


def test_extremes_of_a_feature_are_seen_wherever_they_are(padded: Path) -> None:
    service = loaded(padded)
    rare = traffic(300)
    rare.features["value"][:] = 5
    rare.features["value"][151], rare.features["value"][203] = 40, 1
    seen, full = traffic_shapes(service.models.adapter, rare, 1)
    assert {shapes[1] for shapes in seen} == {(1, 3), (1, 7), (1, 42)}, "a sample of 96 holds neither"
    assert shapes_of(flatten(full)[0]) == ((1,), (1, 7))


def test_a_request_that_prepare_fails_on_is_skipped(padded: Path) -> None:
    service = loaded(padded)
    broken = traffic(3)
    broken.features["value"][1] = -5  # reported when it is replayed
    seen, full = traffic_shapes(service.models.adapter, broken, 2)
    assert shapes_of(flatten(full)[0]) == ((2,), (2, 4)) and len(seen) == 4
