"""Captured graphs: a replay repeats the recorded operators on the recorded memory.

The capture is a fake that keeps operators and tensors, and runs nothing of the model again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from latfix.errors import RunnerError
from latfix.runners.calls.call_counters import Tally
from latfix.runners.gpu.cuda_graphs import GraphedModel, facts_of


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each operator with the tensors that it read and wrote."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in ("aten::_local_scalar_dense", "aten::item"):
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, result))
        return result


class FakeCapturer:
    """Replays operators without Python, like a device."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        with _Recording() as recording:
            result = run()
        done = recording.done

        def replay() -> None:
            for func, args, kwargs, written in done:
                again = tree_flatten(func(*args, **kwargs))[0]
                for old, new in zip(tree_flatten(written)[0], again, strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        self.sizes.append(sum(t.numel() for t in tree_flatten(done[0][1])[0] if isinstance(t, torch.Tensor)))
        return replay, result


class Scorer(torch.nn.Module):
    """Attends over items that are not padding; returns an answer per request and per item."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(50, 8, padding_idx=0)
        self.mix = torch.nn.Linear(8, 8)
        self.calls = 0

    def forward(self, ids: torch.Tensor, extra: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        x = self.mix(self.embed(ids)) * (ids != 0).unsqueeze(-1)
        return {"score": x.sum(dim=(1, 2)) + extra.sum(dim=1), "items": x.sum(-1), "wide": x.mean(1)}


def _batch(size: int, length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + 100 * size + length)
    ids = torch.randint(1, 50, (size, length), generator=generator)
    return {"ids": ids, "extra": torch.randn(size, 3, generator=generator)}


@pytest.fixture
def graphed() -> GraphedModel:
    model = GraphedModel(Scorer().eval(), FakeCapturer(), Tally(), ragged=[0])
    with torch.no_grad():
        model.capture([_batch(size, length) for size in (1, 2, 4) for length in (4, 8)])
    return model


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 4, 5, 8])
def test_answers_are_the_models_own(graphed: GraphedModel, size: int, length: int) -> None:
    calls = graphed.original.calls
    with torch.no_grad():
        batch = _batch(size, length, seed=7)
        got = graphed(**batch)
        assert graphed.original.calls == calls, "a replay runs no Python of the model"
        expected = graphed.original(**batch)
    # ``wide`` is always 8 wide, which is also a bucket's length: it is not cut.
    shapes = {"score": (size,), "items": (size, length), "wide": (size, 8)}
    assert {name: tuple(value.shape) for name, value in got.items()} == shapes
    torch.testing.assert_close(got["score"], expected["score"])
    torch.testing.assert_close(got["items"], expected["items"])


def test_an_answer_outlives_the_next_replay(graphed: GraphedModel) -> None:
    with torch.no_grad():
        first = graphed(**_batch(2, 4, seed=1))
        kept = {name: value.clone() for name, value in first.items()}
        graphed(**_batch(2, 4, seed=2))
    assert all(torch.equal(first[name], kept[name]) for name in kept)


def test_a_batch_that_fits_no_bucket_runs_without_graphs_and_is_counted(graphed: GraphedModel) -> None:
    with torch.no_grad():
        for batch in (_batch(4, 9), _batch(5, 4), _batch(4, 9, seed=3)):
            torch.testing.assert_close(graphed(**batch)["score"], graphed.original(**batch)["score"])
        other = {**_batch(2, 4), "extra": torch.zeros(2, 3, dtype=torch.float64)}
        graphed(**other)
    facts = graphed.facts
    assert facts.replays == 0 and sum(facts.misses.values()) == 4
    assert facts.misses["no graph of 4x9, 4x3"] == 2 and facts.misses["no graph of 5x4, 5x3"] == 1


def test_replays_are_counted_where_the_fixes_look(graphed: GraphedModel) -> None:
    with torch.no_grad():
        graphed(**_batch(4, 8))
        graphed(**_batch(3, 7))
    facts = facts_of([graphed])
    assert (facts["graphs_captured"], facts["graph_replays"], facts["graph_padded"]) == (6, 2, 1)
    assert graphed._tally.runs == 2


def test_the_largest_is_captured_first() -> None:
    capturer = FakeCapturer()
    model = GraphedModel(Scorer().eval(), capturer, Tally(), ragged=[0])
    with torch.no_grad():
        model.capture([_batch(size, 4) for size in (1, 4, 2)])
    assert capturer.sizes == sorted(capturer.sizes, reverse=True) and len(capturer.sizes) == 3


def test_a_tensor_that_is_not_padded_must_fit() -> None:
    """A length that no collate pads has a meaning: it is not extended."""
    model = GraphedModel(Scorer().eval(), FakeCapturer(), Tally())
    with torch.no_grad():
        model.capture([_batch(2, 8), _batch(2, 4)])
        model(**_batch(2, 6))
        model(**_batch(1, 8))
    assert model.facts.replays == 1 and model.facts.misses == {"no graph of 2x6, 2x3": 1}


class Peeks(torch.nn.Module):
    """Reads a number on the host, which no graph can."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 0 else x


class Counts(torch.nn.Module):
    """Its state is in Python: a replay does not advance it."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Reports(torch.nn.Module):
    """Returns numbers beside its tensors: of the input's size, or of its state."""

    calls = 0

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.counts = counts

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.calls += 1
        return {"y": x + 1, "n": self.calls if self.counts else x.shape[1], "kind": "sum", "extra": None}


def test_numbers_may_follow_from_sizes_so_that_their_graphs_serve_these_only() -> None:
    model = GraphedModel(Reports(counts=False), FakeCapturer(), Tally(), ragged=[0])
    model.capture([torch.ones(4, 8), torch.ones(4, 4)])
    for length in (4, 6, 8):
        answer = model(torch.ones(4, length))
        assert (answer["n"], answer["kind"], answer["extra"]) == (length, "sum", None)
    assert model.facts.replays == 2 and model.facts.misses == {"no graph of 4x6": 1}


def test_other_numbers_among_the_inputs_run_without_a_graph() -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, by: int) -> torch.Tensor:
            return x * by

    model = GraphedModel(Scale(), FakeCapturer(), Tally())
    model.capture([{"x": torch.ones(4, 3), "by": 2}, {"x": torch.ones(2, 3), "by": 5}])
    for size, by in ((4, 2), (4, 5), (2, 5), (2, 2)):
        assert torch.equal(model(x=torch.ones(size, 3), by=by), torch.full((size, 3), float(by)))
    assert model.facts.replays == 2, "those with the number of the captured batch"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Reports(counts=True), "gives other answers than the model"),
        (Peeks(), r"capturing a batch of 2x3 raised RuntimeError.*\.item\(\)"),
        (Counts(), "gives other answers than the model"),
    ],
)
def test_a_model_that_cannot_be_captured_is_refused(model: torch.nn.Module, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        GraphedModel(model, FakeCapturer(), Tally()).capture([torch.ones(2, 3)])


def test_a_plain_tensor_and_a_tuple_are_called_as_the_model_is() -> None:
    class Pair(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return a + b, a - b

    model = GraphedModel(Pair(), FakeCapturer(), Tally())
    model.capture([(torch.ones(4, 3), torch.ones(4, 3))])
    total, difference = model(torch.full((3, 3), 5.0), torch.full((3, 3), 2.0))
    assert model.facts.replays == 1
    assert torch.equal(total, torch.full((3, 3), 7.0)) and torch.equal(difference, torch.full((3, 3), 3.0))
