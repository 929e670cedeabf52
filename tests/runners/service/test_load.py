"""Loading models with settings, and the evidence of what the settings changed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.errors import InputError, RunnerError
from latfix.request import Request
from latfix.runners.fixes import Applied, Fix, dispatch_inference_mode, warmup_shapes
from latfix.runners.fixes.fuse import attention as fuse_attention
from latfix.runners.fixes.fuse import channels_last as fuse_channels_last
from latfix.runners.fixes.fuse import compile as fuse_compile
from latfix.runners.fixes.quantize import bf16 as quantize_bf16
from latfix.runners.fixes.quantize import int8_dynamic as quantize_int8_dynamic
from latfix.runners.fixes.quantize import int8_excluded as quantize_int8_excluded
from latfix.runners.fixes.quantize import int8_weight_only as quantize_int8_weight_only
from latfix.runners.gpu.device_selection import resolve_device
from latfix.runners.measure.accuracy import evaluate
from latfix.runners.model_transforms.torch_compile import compiler_missing
from latfix.runners.service.load import load_models, pool_applies
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload
from tests.records import build_record
from tests.runners.engine.served import loaded_service

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
#: A model with a plain parameter: it has no linear layer to quantize.
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
#: Convolutions over images.
IMAGES = """
import torch
from latfix import Workload

class Plain(Workload):
    def load(self, device):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))

    def prepare(self, request):
        return torch.full((3, 9, 9), float(request.features["value"]))
"""
#: One attention over as many tokens as the request's value plus two tokens.
ATTENTION = """
import torch
from latfix import Workload

class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.project(x).view(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).sum((1, 2))

class Plain(Workload):
    def load(self, device):
        torch.manual_seed(1)
        return Attends()

    def prepare(self, request):
        return torch.ones(2 + int(request.features["value"]), 8)
"""
FIXES = (dispatch_inference_mode, fuse_attention, fuse_channels_last, fuse_compile, quantize_bf16, warmup_shapes)
INT8_FIXES = (quantize_int8_dynamic, quantize_int8_excluded, quantize_int8_weight_only)
BY_ID: dict[str, Fix] = {module.FIX.id: module.FIX for module in (*FIXES, *INT8_FIXES)}


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workload(tmp_path_factory.mktemp("model") / "linear", adapter=LINEAR)


@pytest.fixture(scope="module")
def no_linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workload(tmp_path_factory.mktemp("model") / "plain", adapter=NO_LINEAR)


def settings(**values: Any) -> RunnerSettings:
    return RunnerSettings(device="cpu", intra_op_threads=1, **values)


def traffic(n: int = 12) -> Traffic:
    return Traffic.plain(np.arange(n) * 10_000_000, features={"value": np.arange(n)})


def loaded(folder: Path, **values: Any) -> Service:
    entry = "adapter:Small" if folder.name == "linear" else "adapter:Plain"
    return loaded_service(folder, entry, warm=traffic(), **values)


def effective(fix: str, service: Service) -> tuple[bool, str]:
    """The result of the fix's own verification on the service's evidence."""
    record = build_record(traffic=traffic(), settings=service.settings, compilations_in_run=0)
    found = BY_ID[fix].verify(Applied(evidence=service.evidence(traffic()), record=record, without=record))
    return found.effective, found.evidence


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("n", [40, 3])
@pytest.mark.parametrize("place", ["engine.bucket_length", "engine.Engine.done"])
def test_answers_of_a_dead_thread_are_not_waited_for(
    no_linear: Path, monkeypatch: pytest.MonkeyPatch, place: str, n: int
) -> None:
    """A prepare thread or a worker dies; more requests than fit inside, and fewer: those are missed at the end."""
    service = loaded(no_linear)
    requests = [traffic(n).request(k) for k in range(n)]
    before = set(threading.enumerate())

    def die(*_: Any) -> None:
        raise MemoryError("its thread dies")

    monkeypatch.setattr(f"latfix.runners.engine.{place}", die)
    with pytest.raises(RunnerError, match=r"of the runner died; standard error has its traceback$"):
        service.predict(requests)
    service.release()
    assert not {*threading.enumerate()} - before
    monkeypatch.undo()
    assert all(not outcome.error for outcome in service.predict(requests))


def test_int8_layers_are_made_and_run_where_there_are_linear_ones(linear: Path, no_linear: Path) -> None:
    service = loaded(linear, precision="int8_dynamic")
    kinds = [type(module).__module__ for module in service.models.instances[0].model.modules()]
    assert sum("quantized.dynamic" in kind for kind in kinds) == 2
    found, evidence = effective("quantize.int8_dynamic", service)
    assert found, evidence
    assert evidence.startswith("2 of 3 ")
    plain = loaded(linear)
    modules = {"torch.nn.modules.linear.Linear": 2, "torch.nn.modules.activation.ReLU": 1}
    assert plain.evidence(traffic())["modules"] == modules and not effective("quantize.int8_dynamic", plain)[0]
    found, evidence = effective("quantize.int8_dynamic", loaded(no_linear, precision="int8_dynamic"))
    assert not found and evidence.startswith("0 of 1 ")


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


def test_agreement_distinguishes_another_model(no_linear: Path, tmp_path: Path) -> None:
    service = loaded(no_linear)
    assert evaluate(service, traffic(), None, save=tmp_path / "outputs.npz").samples == 12
    assert evaluate(service, traffic(), tmp_path / "outputs.npz").score == 1.0
    with torch.no_grad():
        service.models.instances[0].model.weight[:, 0] = 9.0
    changed = evaluate(service, traffic(), tmp_path / "outputs.npz")
    # All rows are equal, so the first entry is the largest until the original changes.
    assert changed.kind == "agreement: scores" and changed.samples == 12
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


def test_pools_are_one_a_worker_and_only_for_the_default_collate(linear: Path, tmp_path: Path) -> None:
    models = load_models(linear, "adapter:Small", settings(workers=2, shared_model=True, buffer_pool=True))
    assert len(models.pools) == 2 and models.pools[0] is not models.pools[1]
    own = "\n    def collate(self, inputs):\n        return torch.stack(inputs)\n"
    folder = write_workload(tmp_path / "own", adapter=LINEAR.rstrip() + "\n" + own)
    with_own = load_models(folder, "adapter:Small", settings(buffer_pool=True))
    assert with_own.pools == []
    assert not pool_applies(with_own.adapter)


def test_warm_up_runs_every_size_up_to_the_largest_batch(linear: Path) -> None:
    service = loaded(linear, warmup_shapes=3, max_batch_size=6)
    # One input size, though up to three are requested; every size of a batch, because they are few.
    assert service.warmup.shapes == 1 and service.warmup.batches == 6
    assert {key[0][0] for key in service.models.instances[0].seen} == {1, 2, 3, 4, 5, 6}
    assert effective("warmup.shapes", service)[0]
    assert not effective("warmup.shapes", loaded(linear))[0]


REFUSING = "    def to(self, *a):\n        raise RuntimeError('fixed\\nweights')\n\n    def forward(self, x):"


@pytest.mark.parametrize(
    ("old", "new", "precision", "expected"),
    [
        ("    def forward(self, x):", REFUSING, "bf16", r"precision = 'bf16'.*RuntimeError: fixed weights"),
        ("return Matrix()", "return 3", "default", r"Plain.load returned int; expected a torch.nn.Module"),
        (
            "return Matrix()",
            "return open('workload.toml')",
            "default",
            r"FileNotFoundError: .*; it lies next to the adapter: use self.folder / 'workload.toml'",
        ),
    ],
    ids=["a change that it cannot take", "no module", "a file of its folder"],
)
def test_a_model_that_cannot_be_used_is_an_error(
    tmp_path: Path, old: str, new: str, precision: str, expected: str
) -> None:
    folder = write_workload(tmp_path / "w", adapter=NO_LINEAR.replace(old, new))
    with pytest.raises(RunnerError, match=expected):
        load_models(folder, "adapter:Plain", settings(precision=precision))


CALLED = """
import numpy as np
from latfix import Workload

class Plain(Workload):
    def load(self, device):
        return lambda x: x.cumsum(axis=1)

    def prepare(self, request):
        return np.arange(1, 1 + int(request.features["n"]), dtype=np.float32)

    def finish(self, output, request):
        return output[: int(request.features["n"])].tolist()
"""


def test_any_callable_is_a_model_and_arrays_are_inputs(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", adapter=CALLED)
    service = loaded_service(folder, "adapter:Plain", max_batch_size=2)
    outcomes = service.predict([Request(id=str(n), arrival_s=0.0, features={"n": n}) for n in (2, 4)])
    assert [outcome.output for outcome in outcomes] == [[1, 3], [1, 3, 6, 10]], [o.error for o in outcomes]


@pytest.mark.parametrize(
    ("model", "noted"), [("Matrix()", True), ("torch.nn.Sequential(torch.nn.Linear(4, 2))", False)]
)
def test_int8_without_a_linear_layer_is_noted(tmp_path: Path, model: str, noted: bool) -> None:
    folder = write_workload(tmp_path / "w", adapter=NO_LINEAR.replace("Matrix()", model))
    notes = load_models(folder, "adapter:Plain", settings(precision="int8_dynamic")).notes
    assert (
        notes
        == ["precision = 'int8_dynamic' is not in effect: the model has no linear layers that it can change"] * noted
    )


EXPORTED = """class Frozen(torch.nn.Linear):
    def train(self, mode=True):
        super().train(mode)

class Plain(Workload):
    def load(self, device):
        if MODEL == "overrides train":
            return Frozen(4, 2)
        rows = {"input": {0: torch.export.Dim("rows", min=1, max=8)}}
        return torch.export.export(torch.nn.Linear(4, 2), (torch.ones(2, 4),), dynamic_shapes=rows).module()
"""


@pytest.mark.parametrize("model", ["overrides train", "exported"])
def test_a_model_whose_mode_cannot_be_set_in_the_usual_way(tmp_path: Path, model: str) -> None:
    source = NO_LINEAR.replace(
        "class Plain(Workload):\n    def load(self, device):\n        return Matrix()\n", EXPORTED
    )
    service = loaded_service(write_workload(tmp_path / "w", adapter=f"MODEL = {model!r}{source}"), "adapter:Plain")
    assert [outcome.error for outcome in service.predict([traffic().request(k) for k in range(3)])] == [""] * 3


def test_an_import_that_fails_says_what_to_do(tmp_path: Path) -> None:
    for k, (line, advice) in enumerate(
        (
            ("import no_such_package", "No module named 'no_such_package'; install it, or put it next to adapter.py"),
            ("from .model import Model", "adapter.py is in no package: import its neighbors by their names"),
            ("from statistics import scale", "Python has another module 'statistics': rename statistics.py"),
            ("from torch import scale", r"cannot import name 'scale' from 'torch' \(.*\)$"),
            ("from neighbor import scale", r"cannot import name 'scale' from 'neighbor' \(.*\)$"),
        )
    ):
        folder = write_workload(tmp_path / str(k), adapter=f"{line}\n{NO_LINEAR}")
        for name in ("statistics.py", "neighbor.py"):
            (folder / name).touch()
        with pytest.raises(RunnerError, match=advice):
            load_models(folder, "adapter:Plain", settings())
        sys.modules.pop("neighbor", None)
        sys.path.remove(str(folder))


@pytest.mark.parametrize("place", ["        return Matrix()", "class Plain"], ids=["load", "import"])
def test_a_program_that_loads_a_model_can_be_interrupted(tmp_path: Path, place: str) -> None:
    indent = place[: -len(place.lstrip())]
    source = NO_LINEAR.replace(place, f"{indent}raise KeyboardInterrupt\n{place}")
    with pytest.raises(KeyboardInterrupt):
        load_models(write_workload(tmp_path / "w", adapter=source), "adapter:Plain", settings())


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
    monkeypatch.setattr("latfix.runners.model_transforms.torch_compile.shutil.which", lambda *_: None)
    assert "C++ compiler" in compiler_missing()
    monkeypatch.setattr(
        "latfix.runners.model_transforms.torch_compile.shutil.which",
        lambda name: f"/bin/{name}" if name == "clang++" else None,
    )
    assert compiler_missing() == ""


def test_compiling_wraps_the_model_or_the_parts_that_it_names(
    linear: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling takes many seconds, so only the calls of the compiler are checked."""
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
    assert [(what, how.pop("dynamic"), list(how)) for what, how in given] == [(model, True, ["backend"])]
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
    """Hooks would cause a recompilation."""
    monkeypatch.setattr(torch, "compile", lambda what, **_: what)
    service = loaded(linear, compile="dynamic")
    service.predict([traffic().request(k) for k in range(3)])
    seen = service.evidence(traffic())
    assert seen["modules"] == {} and seen["graphs"] == 0
    assert (seen["batches_run"], seen["batches_replaced"]) == (3, 0)
    assert not effective("fuse.compile", service)[0], "no compilation happened"


def test_layers_that_are_kept_stay_as_they_are(linear: Path) -> None:
    service = loaded(linear, precision="int8_dynamic", keep_precision=["2"])
    model = service.models.instances[0].model
    assert type(model[2]) is torch.nn.Linear
    assert "quantized.dynamic" in type(model[0]).__module__
    found, evidence = effective("quantize.int8_excluded", service)
    assert found, evidence
    assert evidence.startswith("1 of 3 ") and evidence.endswith("1 ran in their own precision: 2")
    assert not effective("quantize.int8_excluded", loaded(linear, precision="int8_dynamic"))[0]
    assert not effective("quantize.int8_excluded", loaded(linear, keep_precision=["2"]))[0]
    with pytest.raises(InputError, match=r"keep_precision: found '02', which is no module of Sequential"):
        loaded(linear, precision="int8_dynamic", keep_precision=["02"])


def test_weights_alone_are_int8(tmp_path: Path) -> None:
    wide = LINEAR.replace("Linear(8, 16)", "Linear(16, 16)").replace("randn(8,", "randn(16,")
    folder = write_workload(tmp_path / "linear", adapter=wide)
    service = loaded(folder, precision="int8_weight_only")
    buffers = dict(service.models.instances[0].model.named_buffers())
    assert buffers["0.weight"].dtype is buffers["2.weight"].dtype is torch.int8
    found, evidence = effective("quantize.int8_weight_only", service)
    assert found, evidence
    assert "2 layers" in evidence and "2 packed int8 products" in evidence
    assert loaded(folder).facts(traffic())["few_row_products"] == 2
    many = write_workload(tmp_path / "many" / "linear", adapter=wide.replace("randn(16,", "randn(32, 16,"))
    assert loaded(many).facts(traffic())["few_row_products"] == 0
    assert (
        "0 packed int8 products"
        in effective("quantize.int8_weight_only", loaded(many, precision="int8_weight_only"))[1]
    ), "the fix's prediction matches its verification"
    assert not effective("quantize.int8_weight_only", loaded(folder))[0]
    assert not effective("quantize.int8_weight_only", loaded(folder, precision="int8_dynamic"))[0]
    assert not effective("quantize.int8_weight_only", loaded(folder, precision="bf16"))[0]
    exact, rounded = (
        torch.stack([o.output.float() for o in one.predict([traffic().request(k) for k in range(6)])])
        for one in (loaded(folder), service)
    )
    assert 0 < float((exact - rounded).abs().max()) < 0.03 * float(exact.abs().max())


def test_batches_run_in_inference_mode_from_warm_up_on(linear: Path) -> None:
    """The pool's buffers are made in the mode that writes to them later, also while evidence is gathered."""
    service = loaded(linear, inference_mode=True, buffer_pool=True, warmup_shapes=2, max_batch_size=2)
    outcomes = service.predict([traffic().request(k) for k in range(5)])
    assert [outcome.error for outcome in outcomes] == [""] * 5
    assert all(outcome.output.is_inference() for outcome in outcomes)
    found, evidence = effective("dispatch.inference_mode", service)
    assert found, evidence
    without = loaded(linear)
    without.predict([traffic().request(0)])
    assert effective("dispatch.inference_mode", without) == (False, "0 of 1 batches ran in inference mode")


def test_images_lie_with_channels_last(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "images", adapter=IMAGES)
    before, after = loaded(folder), loaded(folder, memory_format="channels_last")
    assert before.evidence(traffic())["layouts"] == {"contiguous": 3}
    assert after.evidence(traffic())["layouts"] == {"channels_last": 3}
    found, evidence = effective("fuse.channels_last", after)
    assert found, evidence
    assert evidence.startswith("2 weights ")
    assert not effective("fuse.channels_last", before)[0]
    requests = [traffic().request(k) for k in range(3)]
    for a, b in zip(before.predict(requests), after.predict(requests), strict=True):
        assert torch.allclose(a.output, b.output, atol=1e-5), (a.error, b.error)
    laid_out = IMAGES.replace("Conv2d(8, 4, 3))", "Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)")
    folder = write_workload(tmp_path / "laid out" / "images", adapter=laid_out)
    found, evidence = effective("fuse.channels_last", loaded(folder, memory_format="channels_last"))
    assert not found and evidence.startswith("0 weights "), evidence


@pytest.mark.usefixtures("restored_attention")
def test_the_kernel_of_attention_is_chosen_and_seen(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "attention", adapter=ATTENTION)
    before = loaded(folder)
    assert before.evidence(traffic())["kernels"]["aten::_scaled_dot_product_flash_attention_for_cpu"] == 1
    assert not effective("fuse.attention", before)[0]
    found, evidence = effective("fuse.attention", loaded(folder, attention="math"))
    assert found, evidence
    kernels = loaded(folder, attention="flash").evidence(traffic())["kernels"]
    assert kernels["aten::_scaled_dot_product_flash_attention_for_cpu"] == 1


@pytest.fixture
def restored_attention() -> Iterator[None]:
    """The choice holds for the whole process; put it back."""
    cuda: Any = torch.backends.cuda
    kernels = ("math_sdp", "flash_sdp", "mem_efficient_sdp", "cudnn_sdp")
    before = [getattr(cuda, f"{kernel}_enabled")() for kernel in kernels]
    yield
    for kernel, enabled in zip(kernels, before, strict=True):
        getattr(cuda, f"enable_{kernel}")(enabled)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"backend": "onnxruntime", "precision": "bf16"}, r"found precision = 'bf16'; expected 'default'"),
        ({"backend": "openvino", "precision": "int8_dynamic"}, r"expected 'default' or 'bf16'"),
        ({"backend": "onnxruntime", "compile": "dynamic"}, r"found compile = 'dynamic'"),
        ({"backend": "openvino", "precision": "bf16", "keep_precision": ("0",)}, r"found keep_precision, which"),
        ({"backend": "openvino", "memory_format": "channels_last"}, r"found memory_format = 'channels_last'"),
    ],
)
def test_settings_that_another_backend_would_ignore_are_refused(linear: Path, values: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_models(linear, "adapter:Small", settings(**values))


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("fp16", r"precision = 'fp16': found device cpu; half precision is computed on GPUs only"),
        ("fp8_dynamic", r"precision = 'fp8_dynamic': found device cpu; .*compute capability 8.9 or later"),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused(linear: Path, precision: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_models(linear, "adapter:Small", settings(precision=precision))


def test_a_backend_without_a_converted_model_serves_nothing(linear: Path) -> None:
    service = Service(linear, "adapter:Small", settings(backend="onnxruntime"))
    service.load()
    with pytest.raises(RunnerError, match="not converted yet"):
        service.predict([traffic().request(0)])


def test_facts_hold_what_layers_take_in_each_precision(linear: Path, no_linear: Path) -> None:
    facts = loaded(linear).facts(traffic())
    assert set(facts["linear_ms"]) == {"default", "bf16", "int8_dynamic", "int8_weight_only"}
    assert all(value > 0 for value in facts["linear_ms"].values())
    assert facts["few_row_products"] == 1, "a layer of 8 inputs cannot be packed"
    assert loaded(no_linear).facts(traffic())["linear_ms"] == {}
    assert "linear_ms" not in loaded(linear, precision="bf16").facts(traffic())


@pytest.mark.parametrize(
    ("layer", "noted"),
    [
        ("Dropout(0.1)", "Dropout computes"),
        ("BatchNorm1d(4)", "BatchNorm1d computes"),
        ("Dropout(0.0)", ""),
        ("LayerNorm(4)", ""),
        ("Dropout(0.1).eval()", ""),
    ],
)
def test_a_model_in_training_mode_is_noted(tmp_path: Path, layer: str, noted: str) -> None:
    source = LINEAR.replace("torch.nn.Linear(16, 4))", f"torch.nn.Linear(16, 4), torch.nn.{layer})")
    models = load_models(write_workload(tmp_path / "trained", adapter=source), "adapter:Small", settings(workers=2))
    assert not any(module.training for module in models.instances[0].model.modules())
    assert len(models.notes) == bool(noted)
    assert noted in "".join(models.notes)
