"""Loading adapters, calling models, splitting outputs, and their errors."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latfix.errors import InputError, RunnerError
from latfix.runners.calls.model_call import (
    SameFailure,
    call_model,
    describe,
    model_error,
    raised_by,
    split_output,
)
from latfix.runners.calls.tensor_tree import (
    constants_of,
    elements_and_length,
    flatten,
    map_tensors,
    move,
    tensors_of,
    unflatten,
    width_of,
)
from latfix.runners.service.adapter_file import load_adapter


def _adapter(folder: Path, source: str) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "adapter.py").write_text(source)
    return load_adapter(folder, "adapter:A")


def test_an_adapter_knows_its_folder_and_may_import_neighbors(tmp_path: Path) -> None:
    """Two folders may use one file name, and a folder's name need not be UTF-8."""
    other = tmp_path / os.fsdecode(b"caf\xe9")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "neighbor_of_this_test.py").write_text("VALUE = 3\n")
    head, body = (
        "import neighbor_of_this_test as n\n",
        "from latfix import Workload\nclass A(Workload):\n    value = ",
    )
    first, second = _adapter(tmp_path / "1", head + body + "n.VALUE"), _adapter(other, body + "4")
    assert (first.folder, second.folder) == (tmp_path / "1", other)
    assert (first.value, second.value) == (3, 4)


def test_processes_that_an_adapter_starts_can_import_it(tmp_path: Path) -> None:
    """A pool that spawns its processes sends functions by the name of their module, and the parent's ``sys.path``."""
    (tmp_path / "adapter_of_this_test.py").write_text("from latfix import Workload\nclass A(Workload): pass\n")
    sent = pickle.dumps(type(load_adapter(tmp_path, "adapter_of_this_test:A")))
    assert type(load_adapter(tmp_path, "adapter_of_this_test:A")) is pickle.loads(sent), "it is loaded once"
    child = f"import pickle, sys; sys.path[:] = {sys.path!r}; print(pickle.loads({sent!r}).__name__)"
    assert subprocess.run([sys.executable, "-c", child], capture_output=True, check=True).stdout == b"A\n"


@pytest.mark.parametrize(
    ("source", "kind", "found"),
    [
        ("class A: pass", InputError, "not a subclass of latfix.Workload"),
        ("A = 3", InputError, "not a subclass"),
        ("A = None", InputError, "found no class 'A'"),
        ("class B: pass", InputError, "found no class 'A', which entry = 'adapter:A' names; expected one of B"),
        (
            "from latfix import Workload\nclass A(Workload):\n    async def finish(self, o, r): return o",
            InputError,
            "A.finish, which is async or yields",
        ),
        ("raise ValueError('no weights')", RunnerError, "adapter.py:1: importing it raised ValueError: no weights"),
        (
            "import no_such_module_at_all",
            RunnerError,
            "ModuleNotFoundError.*; install it, or put it next to",
        ),
        ("raise SystemExit(3)", RunnerError, "SystemExit: 3"),
        ("\ndef f(:", RunnerError, "adapter.py:2: importing it raised SyntaxError"),
        (
            "from latfix import Workload\nclass A(Workload):\n    def __init__(self, x): pass",
            RunnerError,
            "TypeError",
        ),
        ("class P(BaseException): pass\nraise P('panic')", RunnerError, "P: panic"),
    ],
)
def test_an_adapter_that_fails_has_a_reason(tmp_path: Path, source: str, kind: type[Exception], found: str) -> None:
    with pytest.raises(kind, match=found) as caught:
        _adapter(tmp_path, source)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="there is no file"):
        load_adapter(tmp_path, "nothing:A")


class Ranked(NamedTuple):
    order: torch.Tensor
    names: list[str]


@dataclass(frozen=True, slots=True)
class Scored:
    scores: torch.Tensor
    ranked: Ranked | None = None
    extra: None = None
    version: str = "v3"


@given(st.integers(1, 6), st.integers(1, 4))
def test_outputs_are_split_along_the_batch(size: int, width: int) -> None:
    batch = torch.arange(size * width).reshape(size, width)
    nested = {"scores": batch, "pair": (batch + 1, list(range(size))), "array": batch.numpy()}
    parts = split_output(nested, size)
    assert len(parts) == size
    for k, part in enumerate(parts):
        assert torch.equal(part["scores"], batch[k])
        assert torch.equal(part["pair"][0], batch[k] + 1)
        assert part["pair"][1] == k
        assert np.array_equal(part["array"], batch[k].numpy())


@pytest.mark.parametrize(
    "output",
    [
        torch.ones(3, 2),
        torch.tensor(1.0),
        [1, 2, 3],
        np.ones(3),
        np.array(1.0),
        pytest.param(object(), id="object"),
        "ab",
        3.0,
        (torch.ones(2), torch.ones(3)),
        Scored(torch.ones(3)),
    ],
    ids=repr,
)
def test_an_output_without_the_batch_is_refused(output: object) -> None:
    with pytest.raises(ValueError, match="the model returned"):
        split_output(output, 2)
    with pytest.raises(ValueError, match=r"shape \(3, 2\) for a batch of 1; .* if it has none \(boxes\)"):
        split_output(torch.ones(3, 2), 1)
    with pytest.raises(ValueError, match="the model returned a list of 3 for a batch of 4"):
        split_output([1, 2, 3], 4)  # lists are valid outputs, so the message must not require tensors
    with pytest.raises(ValueError, match=r"the model returned a list of 3 in 'meta\.1' for a batch of 4"):
        split_output({"meta": (torch.ones(4), ["a", "b", "c"])}, 4)


def test_dataclasses_and_named_tuples_are_split_field_by_field() -> None:
    batch = torch.arange(6.0).reshape(3, 2)
    parts = split_output(Scored(batch, Ranked(batch + 1, ["a", "b", "c"])), 3)
    for k, part in enumerate(parts):
        assert isinstance(part, Scored) and isinstance(part.ranked, Ranked) and part.version == "v3"
        assert torch.equal(part.scores, batch[k]) and part.extra is None
        assert torch.equal(part.ranked.order, batch[k] + 1) and list(part.ranked.names) == ["abc"[k]]
    assert [tensor.shape for tensor in tensors_of(parts[0])] == [(2,), (2,)]
    doubled = map_tensors(parts[1], lambda tensor, _: tensor * 2)
    assert doubled.scores.tolist() == [4.0, 6.0] and doubled.ranked.order.tolist() == [6.0, 8.0]


class Answer(OrderedDict[str, Any]):
    """A dict whose items are attributes, too, as some libraries answer."""

    logits: torch.Tensor

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


def test_a_dict_with_attributes_keeps_them() -> None:
    output = Answer(logits=torch.arange(6.0).reshape(3, 2))
    for k, part in enumerate(split_output(output, 3)):
        assert part.logits.tolist() == part["logits"].tolist() == output.logits[k].tolist()
    assert map_tensors(output, lambda tensor, _: tensor + 1).logits[0, 0] == 1
    _, structure = flatten(output)
    assert unflatten(structure, [torch.tensor(5)]).logits == 5
    assert output.logits.shape == output["logits"].shape == (3, 2)


@dataclass
class Found:
    boxes: torch.Tensor
    labels: tuple[torch.Tensor, None]


def test_dataclasses_are_flattened_and_rebuilt() -> None:
    """A converted model returns a row of tensors; everything else is part of the structure."""
    rest = {"none": None, "loss": 0, "texts": ["tensor", b"x"], "rate": 0.5}
    tensors, structure = flatten({"found": Found(torch.ones(2), (torch.zeros(3), None)), **rest})
    assert [tensor.tolist() for tensor in tensors] == [[1.0] * 2, [0.0] * 3]
    found = unflatten(structure, [torch.tensor(5), torch.tensor(6)])
    assert found == {"found": Found(torch.tensor(5), (torch.tensor(6), None)), **rest}
    assert constants_of(structure) == {
        "found.labels.1": None,
        "none": None,
        "loss": 0,
        "texts.0": "tensor",
        "texts.1": b"x",
        "rate": 0.5,
    }
    assert constants_of(flatten(7)[1]) == {"": 7} and unflatten(flatten(7)[1], []) == 7
    for wrong, found in (
        (np.ones(2), "ndarray"),
        ({"text": [{"a"}]}, "set in 'text'"),
        ({"labels": (torch.zeros(1), np.float32(3))}, "float32 in 'labels'"),
    ):
        with pytest.raises(TypeError, match=f"found {found} where tensors"):
            flatten(wrong)


@pytest.mark.parametrize("value", [3.5, 3, True, "yes", np.float32(2), torch.tensor(1.0)], ids=repr)
def test_a_single_value_answers_a_batch_of_one(value: object) -> None:
    assert split_output(value, 1) == [value]


def test_none_is_the_answer_to_each_request() -> None:
    assert split_output(None, 3) == [None, None, None]
    assert split_output({"scores": [1, 2], "extra": None}, 2) == [
        {"scores": 1, "extra": None},
        {"scores": 2, "extra": None},
    ]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [(torch.tensor(2.0), 2.0), ((1.0, 2.0), 3.0), ([1.0, 2.0], 3.0), ({"a": 1.0, "b": 4.0}, 5.0)],
)
def test_a_model_is_called_by_the_contract(inputs: Any, expected: float) -> None:
    def model(a: Any, b: Any = 0.0) -> Any:
        return a + b

    assert call_model(model, inputs) == expected


def test_tensors_are_found_and_moved_in_any_nesting() -> None:
    value = {"a": torch.ones(2), "b": (torch.ones(3, dtype=torch.int64), [torch.ones(1), "text"]), "c": None}
    assert [tensor.numel() for tensor in tensors_of(value)] == [2, 3, 1]
    moved = move(value, "cpu", torch.bfloat16)
    assert moved["a"].dtype == torch.bfloat16
    assert moved["b"][0].dtype == torch.int64, "integers stay integers"
    assert moved["b"][1][1] == "text"


def test_elements_and_length() -> None:
    tensors = [torch.ones(3, 5), torch.ones(7), torch.tensor(1.0)]
    assert elements_and_length(tensors, 0) == (23, 7)
    assert elements_and_length(tensors, 1) == (23, 5)
    assert elements_and_length([], 0) == (0, 0)


def test_the_width_is_that_of_the_largest_tensor() -> None:
    assert width_of([torch.ones(7), torch.ones(3, 5), torch.tensor(1.0)]) == 5
    assert (width_of([torch.tensor(1.0)]), width_of([])) == (1, 0)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("two\nlines\t and more"), "ValueError: two lines and more"),
        (ValueError(), "ValueError"),
        (_Unprintable(), "_Unprintable"),
        (ValueError("half \ud800"), "ValueError: half ?"),
        (
            RuntimeError(
                "Exception from src/core.cpp:132:\nCheck 'false' failed at src/ops.cpp:151:\nno rule for Loop-2"
            ),
            "RuntimeError: no rule for Loop-2",
        ),
        (
            RuntimeError(
                "[ONNXRuntimeError] : 1 : FAIL : Load model from /my models/m.onnx failed:/onnxruntime_src/graph/"
                "model.cc:256 onnxruntime::Model::Model(const PathString&, const Logger&) Unsupported IR version: 20"
            ),
            "RuntimeError: [ONNXRuntimeError] : 1 : FAIL : Unsupported IR version: 20",
        ),
        (
            RuntimeError("/onnxruntime_src/a.cc:235 A::A(const string&)::<lambda()> no locale"),
            "RuntimeError: no locale",
        ),
    ],
)
def test_an_error_is_one_line_that_any_file_can_hold(error: BaseException, shown: str) -> None:
    assert describe(error) == shown
    assert len(describe(ValueError("x" * 100_000))) < 400


SECOND = 1_000_000_000


def failed(messages: list[str], every_ns: int = SECOND // 20) -> tuple[SameFailure, int]:
    failure = SameFailure()
    for message, now in zip(messages, count(0, every_ns), strict=False):
        failure.add(message, now)
    return failure, len(messages) * every_ns


def test_failures_that_differ_by_numbers_alone_are_alike() -> None:
    failure, now = failed([f"ValueError: request {k} of a1b2-{k}c has 3 rows" for k in range(60)])
    assert "after 60 requests" in failure.given_up(60, now)
    assert failure.given_up(60, now).endswith("request 0 of a1b2-0c has 3 rows")
    assert not failure.given_up(61, now), "one of them did not fail"


def test_few_or_different_or_quick_failures_do_not_end_a_replay() -> None:
    assert not failed(["x"] * 49)[0].given_up(49, 60 * SECOND)
    assert not failed(["x"] * 30 + ["y"] * 30)[0].given_up(60, 60 * SECOND)
    quick, now = failed(["x"] * 60, 1000)
    assert not quick.given_up(60, now)


@pytest.mark.parametrize(
    ("inputs", "hint"),
    [
        ({"start": torch.ones(1, 2)}, "passed to the model as keyword arguments"),
        (np.ones((1, 2), np.float32), "return tensors from prepare"),
        (torch.ones(1, 3), ""),
        (torch.ones(1, 2), "compute derivatives in torch.enable_grad"),
    ],
)
def test_a_common_mistake_of_an_adapter_gets_a_hint(inputs: Any, hint: str) -> None:
    class Force(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.autograd.grad(super().forward(x).sum(), x)[0]

    with pytest.raises((TypeError, RuntimeError)) as raised, torch.no_grad():
        call_model(Force(2, 1), inputs)
    message = model_error(raised.value)
    assert message.startswith("the model raised ") and hint in message and bool(hint) == (";" in message)


def test_an_error_names_the_innermost_line_of_the_users_files(tmp_path: Path) -> None:
    adapter = _adapter(
        tmp_path / "1",
        "import torch\nfrom latfix import Workload\n\nclass A(Workload):\n"
        "    def prepare(self, request):\n        return self.row(request)\n\n"
        "    def row(self, request):\n        return torch.zeros(2) @ torch.zeros(3)\n",
    )
    with pytest.raises(RuntimeError) as raised:
        adapter.prepare(None)
    assert raised_by("prepare", raised.value).endswith(" (adapter.py:9)")
