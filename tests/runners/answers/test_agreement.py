"""Agreement of answers with the original's: names of outputs, shares, and variation of the original itself."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from latfix.config.model_output_rules import ALL, OutputRule
from latfix.errors import InputError
from latfix.results.answer_check import AnswerCheck, JudgedOutput
from latfix.runners.answers.agreement import Yardstick, compare, difference, following_axes, yardstick_of
from latfix.runners.answers.named_outputs import outputs_of
from latfix.runners.answers.own_variation import own_variation


@dataclass
class _Found:
    """An answer of a type of its own; what is written of many numbers leaves most of them out."""

    boxes: torch.Tensor
    label: str = "cat"


class _Plain:
    """Its ``repr`` is its address, and it refers to itself."""

    def __init__(self, score: float) -> None:
        self.score, self.whole = score, self


class _Picture:
    """As Pillow's images are."""

    def __init__(self, pixel: int) -> None:
        self.pixels = np.full((20, 20, 3), pixel, np.uint8)

    def __repr__(self) -> str:
        return f"<Picture at {id(self):#x}>"

    @property
    def __array_interface__(self) -> Any:
        return self.pixels.__array_interface__


def _quantized(*values: float) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a later torch has none
        return torch.quantize_per_tensor(torch.tensor(values), 0.1, 0, torch.qint8)


class _Record:
    """As records of pydantic: its ``repr`` has all digits."""

    def __init__(self, label: str, scores: list[float]) -> None:
        self.label, self.scores = label, scores

    def __repr__(self) -> str:
        return f"_Record(label={self.label!r}, scores={self.scores})"


class _Slotted:
    """As records of attrs and msgspec."""

    __slots__ = __match_args__ = ("score",)

    def __init__(self, score: float) -> None:
        self.score = score

    def __repr__(self) -> str:
        return f"_Slotted({self.score})"


class _Label(Enum):
    CAT = 100
    DOG = 101


_MANY = torch.arange(1.0, 4001.0)


def _agree(a: Any, b: Any) -> float:
    expected = outputs_of(a)
    return compare(yardstick_of([expected], {}), expected, outputs_of(b)).agreement


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([0.1, 0.9]), torch.tensor([0.2, 0.8]), True),
        (torch.tensor([0.1, 0.9]), torch.tensor([0.9, 0.1]), False),
        (torch.tensor(1.0), torch.tensor(1.015), True),
        (torch.tensor(1.0), torch.tensor(1.05), False),
        (torch.tensor([2.0]), torch.tensor([2.5]), False),
        (1.0, 1.0, True),
        (3, 3, True),
        (3, 4, False),
        ("cat", "cat", True),
        ("cat", "dog", False),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        (torch.tensor([1, 2]), torch.tensor([2, 1]), False),
        (torch.ones(2), torch.ones(3), False),
        ({"label": "a", "score": 0.5}, {"score": 0.501, "label": "a"}, True),
        ({"label": "a", "score": 0.5}, {"score": 0.501, "label": "b"}, False),
        ([1, 2], [1], False),
        ((1, torch.ones(2)), (1,), False),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), True),
        (torch.tensor(float("nan")), torch.tensor(1.0), False),
        (torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0], dtype=torch.bfloat16), True),
        (_Found(_MANY), _Found(_MANY * 1.001), True),
        (_Found(_MANY), _Found(torch.where(_MANY == 2000, 3000.0, _MANY)), False),
        (torch.tensor([[[1 + 2j, 3 - 1j]]]), torch.tensor([[[1 + 2.001j, 3 - 1j]]]), True),
        (torch.tensor([[[1 + 2j, 3 - 1j]]]), torch.tensor([[[2 + 1j, 3 - 1j]]]), False),
        (_Plain(1.0), _Plain(1.01), True),
        (_Plain(1.0), _Plain(2.0), False),
        (_Record("cat", [1 / 3, 2 / 3]), _Record("cat", [0.3334, 0.6666]), True),
        (_Record("cat", [1 / 3, 2 / 3]), _Record("dog", [1 / 3, 2 / 3]), False),
        (_Slotted(1 / 3), _Slotted(0.3334), True),
        (_Slotted(1 / 3), _Slotted(0.4), False),
        (SimpleNamespace(score=1 / 3), SimpleNamespace(score=0.3334), True),
        (_Label.CAT, _Label.CAT, True),
        (_Label.CAT, _Label.DOG, False),
        ('{"label": "cat", "score": 0.33333333333}', '{"label": "cat", "score": 0.3334}', True),
        (b'[{"label": "cat", "score": 0.33333333333}]', b'[{"label": "dog", "score": 0.33333333333}]', False),
        ("[no JSON]", "[no JSON at all]", False),
        (_Picture(200), _Picture(200), True),
        (_Picture(200), _Picture(100), False),
        ((n for n in "a"), (n for n in "a"), True),
        ({"a", "b"}, {"b", "a"}, True),
        ({"a", "b"}, {"a", "c"}, False),
        (torch.diag(torch.tensor([1.0, 5.0])).to_sparse(), torch.diag(torch.tensor([1.0, 5.0])), True),
        (torch.diag(torch.tensor([1.0, 5.0])).to_sparse(), torch.diag(torch.tensor([5.0, 1.0])).to_sparse(), False),
        (_quantized(1.0, 5.0), _quantized(1.0, 5.1), True),
        (_quantized(1.0, 5.0), _quantized(5.0, 1.0), False),
        (torch.tensor([1e60], dtype=torch.float64), torch.tensor([2e60], dtype=torch.float64), False),
    ],
)
def test_agreement(a: Any, b: Any, same: bool) -> None:
    assert (_agree(a, b) == 1.0) is same
    assert (_agree(b, a) == 1.0) is same


def test_outputs_are_named_by_their_path() -> None:
    found = outputs_of({"b": (1, torch.tensor([2.0])), "a": "x", "c": [{"box": [1.0, 2.0]}, {"box": [3.0]}]})
    assert [(name, values.tolist()) for name, values in found] == [
        ("a", "x"),
        ("b.0", 1),
        ("b.1", [2.0]),
        ("c.*.box", [1.0, 2.0]),
        ("c.*.box", [3.0]),
    ]
    assert [name for name, _ in outputs_of(_Plain(2.0))] == ["score"]
    model, record = torch.nn.Linear(1, 1), _Record("cat", [1.0])
    record.__dict__ |= {"made_by": model, "log": logging.getLogger(), "library": np}
    assert [name for name, _ in outputs_of(record)] == ["label", "library", "log", "scores"]
    assert outputs_of({"stream": (n for n in "a"), "file": BytesIO()}) == [], "what cannot be seen is not equal"
    assert [name for name, _ in outputs_of(torch.ones(1), ["logits"])] == ["logits"]
    assert [name for name, _ in outputs_of((1, 2.5, torch.ones(1)), ["a", "b", "c"])] == ["a", "b", "c"]


def test_an_answer_agrees_as_much_as_its_worst_output() -> None:
    expected = outputs_of({"tokens": torch.arange(10), "score": 1.0})
    yardstick = yardstick_of([expected], {})
    changed = torch.arange(10)
    changed[3] = 0
    found = compare(yardstick, expected, outputs_of({"tokens": changed, "score": 1.01}))
    assert (found.agreement, found.output) == (0.9, "tokens") and found.distance == pytest.approx(0.01)
    assert yardstick.kinds == "numbers, steps"


def test_a_yardstick_is_read_as_it_was_written() -> None:
    answers = [outputs_of({"y": torch.randn(5 + k, 9), "label": k}) for k in range(4)]
    whole = yardstick_of(answers, {}, [[(5 + k,)] for k in range(4)])
    assert whole.follows == {"y": (0,)}
    assert Yardstick.from_json(whole.to_json()) == whole


def test_declared_kinds_take_precedence() -> None:
    answers = [outputs_of({"a": torch.randn(5), "b": torch.randn(5)})]
    rules = {ALL: OutputRule(kind="vectors"), "b": OutputRule(kind="numbers")}
    found = yardstick_of(answers, rules)
    assert {name: measure.kind for name, measure in found.measures.items()} == {"a": "vectors", "b": "numbers"}
    assert set(found.told.values()) == {"declared"}
    with pytest.raises(InputError, match=r"w.toml: line 3: found output 'c'; the service answers 'a', 'b'"):
        yardstick_of(answers, {"c": OutputRule(kind="ids", where="w.toml: line 3")})


def test_answers_that_failed_or_broke_are_counted() -> None:
    first = [outputs_of(torch.tensor([1.0, -4.0])), outputs_of(torch.tensor([2.0, 0.0])), None]
    lost = outputs_of(torch.tensor([float("nan"), 0.0]))
    for answer in (None, lost):
        found = difference(yardstick_of(first, {}), first, [first[0], answer, first[1]])
        assert found.agreements.tolist() == [1.0, 0.0], "a request that the original fails does not count"
        assert (found.broken, found.same) == (1, False)


def test_nothing_compared_is_not_the_same() -> None:
    """A model that fails on each request alone, as batch norm does in training mode, proves nothing about a fix."""
    found = difference(yardstick_of([None], {}), [None], [outputs_of(1)])
    assert (found.agreement, found.same) == (0.0, False)


def test_none_is_nothing_to_compare() -> None:
    """A service that only sometimes answers None is compared."""
    none = [outputs_of(None), outputs_of({"extra": None})]
    assert none == [[], []]
    check = own_variation(["a", "b"], none, none, [], {}).check
    assert check.incomparable and "nothing to compare" in check.faults()[0]
    nan = [outputs_of({"a": torch.full((2,), torch.nan), "b": None})] * 2
    check = own_variation(["a", "b"], nan, nan, [], {}).check
    assert check.incomparable and "answers None or NaN, or nothing" in check.faults()[0]
    some = [outputs_of(None), outputs_of(2.0)]
    check = own_variation(["a", "b"], some, some, [], {}).check
    assert not check.incomparable and check.faults()[0].startswith("1 request got None or NaN as the answer")
    assert not own_variation(["a", "b"], [some[1]] * 2, [some[1]] * 2, [], {}).check.faults()
    assert difference(yardstick_of(some, {}), some, [some[1], some[1]]).agreements.tolist() == [0.0, 1.0]


def test_a_time_in_an_answer_is_left_out_if_declared() -> None:
    once, again = ([outputs_of({"label": k, "took": time}) for k in range(4)] for time in (0.1, 0.2))
    check = own_variation("abcd", once, [], [], {}, repeated=again).check
    assert check.incomparable and 'declare took = { kind = "ignored" } in [outputs]' in check.faults()[0]
    rules = {"took": OutputRule(kind="ignored")}
    own = own_variation("abcd", once, [], [], rules, repeated=again)
    assert not own.check.incomparable and not own.check.faults() and own.yardstick.kinds == "ids"
    read = Yardstick.from_json(own.yardstick.to_json())
    assert difference(read, once, again).same and not difference(read, once, again[::-1]).same
    assert own_variation("abcd", once, [], [], {ALL: OutputRule(kind="ignored")}, repeated=again).check.incomparable


def test_an_output_is_called_as_it_is() -> None:
    judged = JudgedOutput(name="Y", kind="steps", told="", bound=0.2, varies=0.0, follows=(0,), uncut=(0,))
    (fault,) = AnswerCheck(outputs=(judged,), compared=1, differing=0).faults()
    assert fault.startswith("Output 'Y' is as long as the request's input in dimension 0")


def test_dimensions_that_follow_an_input_are_found_by_two_lengths() -> None:
    def answer(steps: int, boxes: int) -> Any:
        return outputs_of({"steps": torch.randn(steps, 7), "boxes": torch.randn(boxes, 4)})

    widths = [40, 64, 40, 100]
    answers = [answer(width // 4, boxes) for width, boxes in zip(widths, (3, 1, 2, 5), strict=True)]
    shapes = [[(3, 32, width)] for width in widths]
    assert following_axes(answers, shapes) == {"steps": (0,)}, "boxes differ for one width"
    assert following_axes(answers[:1], shapes[:1]) == {}
    falling = [answer(100 - width // 4, 1) for width in widths]
    assert following_axes(falling, shapes) == {}


def _service(leaks: float, *, noise: float = 1e-6, n: int = 40) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Answers alone, in batches of eight padded to the longest, and on other threads; and the inputs' shapes."""
    rng = np.random.default_rng(4)
    lengths = rng.integers(4, 40, n)
    alone, batched, threaded = [], [], []
    for k, length in enumerate(lengths):
        longest = int(lengths[k - k % 8 : k - k % 8 + 8].max())
        steps = rng.normal(size=(longest, 6)) * 3
        seen = steps.copy()
        size = noise + leaks * (longest > length)
        seen[:length] += size * rng.normal(size=(length, 6))
        alone.append(outputs_of(torch.tensor(steps[:length]), ["y"]))
        batched.append(outputs_of(torch.tensor(seen), ["y"]))
        threaded.append(outputs_of(torch.tensor(steps[:length] * (1 + noise)), ["y"]))
    return alone, batched, threaded, [[(int(length), 3)] for length in lengths]


def test_a_service_whose_padding_leaks_is_reported() -> None:
    alone, batched, threaded, shapes = _service(leaks=2.0)
    ids = [f"r{k}" for k in range(len(alone))]
    own = own_variation(ids, alone, batched, threaded, {}, shapes)
    check = own.check
    assert check.padded and 25 < check.differing < check.compared == 40 and check.example is not None
    assert check.differing == int((own.agreements < 1.0).sum()) and own.agreements.mean() < 0.9
    fault, cut = check.faults()
    assert f"request {check.example.request!r}" in fault and f"{check.differing} of 40 requests" in fault
    assert fault.startswith("This service answers a padded request differently than the request alone")
    assert "dimension 0" in cut
    assert own.yardstick.measures["y"].varies < 1e-4, "a leak is no noise that others might hide in"


def test_labels_that_differ_in_a_batch_are_not_called_another_shape_alone() -> None:
    alone, batched = ([outputs_of(torch.tensor([True, k < last])) for k in range(8)] for last in (8, 6))
    (fault,) = own_variation([str(k) for k in range(8)], alone, batched, [], {}).check.faults()
    assert "its output: another label, text or shape, 50 % agree; 2 of 8 requests" in fault


def test_a_service_that_is_right_has_no_fault_and_its_noise_is_known() -> None:
    alone, batched, threaded, shapes = _service(leaks=0.0, noise=1e-3)
    own = own_variation([str(k) for k in range(40)], alone, batched, threaded, {}, shapes)
    assert (own.check.differing, own.check.example, own.agreements.min()) == (0, None, 1.0)
    assert 1e-4 < own.yardstick.measures["y"].varies < 1e-2
    again = difference(own.yardstick, alone, batched)
    assert again.agreement == 1.0 and again.same


def test_answers_that_finish_cut_are_no_fault() -> None:
    alone, batched, threaded, shapes = _service(leaks=0.0)
    ids = [str(k) for k in range(40)]
    (fault,) = own_variation(ids, alone, batched, threaded, {}, shapes).check.faults()
    assert "in a batch as long as the longest" in fault
    cut = own_variation(ids, alone, alone, threaded, {}, shapes).check
    assert cut.faults() == () and cut.outputs[0].follows == (0,)


def test_a_finding_is_read_as_it_was_written() -> None:
    alone, batched, threaded, shapes = _service(leaks=2.0)
    check = own_variation([str(k) for k in range(40)], alone, batched, threaded, {}, shapes).check
    assert type(check).from_json(check.to_json()) == check
    assert check.judged().startswith("Answers are compared as steps ('y', by the shape (")
