"""The buffer pool: the same batches as the default collate, from preallocated memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latfix.adapter_api import default_collate
from latfix.runners.calls.buffer_pool import LARGEST_ANSWER, MOST_BUFFERS, BufferPool, bucket_elements

DTYPES = [torch.float32, torch.int64, torch.bool, torch.float64]


@st.composite
def tensor_batches(draw: st.DrawFn) -> list[torch.Tensor]:
    rest = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    dtype = draw(st.sampled_from(DTYPES))
    scalar = draw(st.booleans()) and not rest
    shapes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    return [torch.randint(0, 2, () if scalar else (n, *rest), generator=generator).to(dtype) for n in shapes]


@st.composite
def nested_batches(draw: st.DrawFn) -> list[Any]:
    size = draw(st.integers(1, 4))
    columns = [draw(tensor_batches()) for _ in range(draw(st.integers(1, 3)))]
    rows = [[column[k % len(column)] for column in columns] for k in range(size)]
    kind = draw(st.sampled_from(["tuple", "dict", "nested"]))
    if kind == "tuple":
        return [tuple(row) for row in rows]
    if kind == "dict":
        return [{f"k{j}": value for j, value in enumerate(row)} for row in rows]
    return [{"a": tuple(row), "b": row[0]} for row in rows]


@given(st.lists(st.one_of(tensor_batches(), nested_batches()), min_size=1, max_size=6))
def test_equal_to_the_default_collate_batch_after_batch(batches: list[list[Any]]) -> None:
    pool = BufferPool()
    for batch in batches:
        torch.testing.assert_close(pool.collate(batch), default_collate(batch), rtol=0, atol=0)


def test_arrays_are_batched_in_buffers_too() -> None:
    pool = BufferPool()
    for sizes in ((2, 3), (3, 1)):
        batch = [{"rows": np.full((size, 2), float(size))} for size in sizes]
        np.testing.assert_array_equal(pool.collate(batch)["rows"], default_collate(batch)["rows"], strict=True)
    assert (pool.hits, pool.misses) == (1, 1)


def test_a_buffer_is_reused_without_old_contents() -> None:
    pool = BufferPool()
    first = pool.collate([torch.ones(8), torch.ones(8)])
    where = first.data_ptr()
    del first

    second = pool.collate([torch.full((3,), 2.0), torch.full((1,), 2.0)])

    assert second.data_ptr() == where
    assert second.tolist() == [[2, 2, 2], [2, 0, 0]]
    assert (pool.hits, pool.misses) == (1, 1)


@given(st.integers(0, 10**9))
def test_a_bucket_holds_what_falls_into_it_and_wastes_less_than_half(elements: int) -> None:
    bucket = bucket_elements(elements)
    assert bucket >= elements
    assert bucket == 4 or 2 * elements > bucket
    assert bucket_elements(bucket) == bucket


def test_a_batch_that_fits_a_bucket_needs_no_new_buffer() -> None:
    pool = BufferPool()
    for size, hits, misses in ((100, 0, 1), (120, 1, 1), (3, 2, 1), (129, 2, 2), (100, 3, 2)):
        pool.collate([torch.ones(size)])
        assert (pool.hits, pool.misses) == (hits, misses), size
    assert pool.bytes_held == 4 * 192, "the smaller one was replaced"


@pytest.mark.parametrize(
    "inputs",
    [
        [{"x": torch.zeros(2)}, {"x": torch.zeros(2), "y": torch.zeros(2)}],
        [(torch.zeros(2),), (torch.zeros(2), torch.zeros(2))],
        [{"x": torch.zeros(2)}, torch.zeros(2)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
        [torch.zeros(2, 3), torch.zeros(2, 4)],
    ],
)
def test_inputs_that_are_not_built_alike_are_refused_by_both(inputs: list[Any]) -> None:
    for collate in (default_collate, BufferPool().collate):
        with pytest.raises(ValueError, match="override collate"):
            collate(inputs)


def test_an_answer_that_lies_in_the_pool_is_copied_out() -> None:
    """A model may return its input; the next batch would overwrite it."""
    pool = BufferPool()
    batch = pool.collate([torch.ones(3), torch.ones(3)])
    kept = pool.release({"same": batch, "view": (batch[:, 1:],), "text": "plain"})
    del batch
    pool.collate([torch.zeros(3), torch.zeros(3)])
    assert kept["same"].eq(1).all() and kept["view"][0].eq(1).all() and kept["text"] == "plain"
    assert pool.held == 0, "no view of the batch's buffer is left"


class Keeping(torch.nn.Module):
    """Keeps every input or a view of it, and returns the input."""

    def __init__(self, keep: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.kept: list[Any] = []
        self._keep = keep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(self._keep(x))
        return x


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "keep",
    [lambda x: x, lambda x: x[:, 1:], lambda x: x.view(-1), lambda x: x.numpy(), lambda x: {"deep": (x.detach(),)}],
    ids=["itself", "a view", "another shape", "as NumPy", "nested"],
)
def test_a_model_may_keep_its_inputs(keep: Callable[[torch.Tensor], Any], mode: Any) -> None:
    """A buffer is reused only when no view of it is held."""
    pool, model = BufferPool(), Keeping(keep)
    with mode():
        for value in (1.0, 2.0, 3.0):
            pool.release(model(pool.collate([torch.full((4,), value)])))
    assert pool.held > 0
    for value, kept in zip((1.0, 2.0, 3.0), model.kept, strict=True):
        found = kept["deep"][0] if isinstance(kept, dict) else kept
        assert (np.asarray(found) == value).all()
    misses = pool.misses
    model.kept.clear()
    del found, kept
    pool.collate([torch.zeros(4)])
    assert pool.misses == misses, "released buffers are reused"


def test_a_model_that_keeps_everything_does_not_make_the_pool_grow_without_bound() -> None:
    pool, kept = BufferPool(), []
    for _ in range(5 * MOST_BUFFERS):
        kept.append(pool.collate([torch.ones(1000)]))
    assert pool.bytes_held <= MOST_BUFFERS * 4 * 1024
    assert len({batch.data_ptr() for batch in kept}) == len(kept)


def test_answers_are_written_into_buffers_of_their_own_unless_their_caller_keeps_them() -> None:
    pool = BufferPool()
    where = set()
    for value in range(4):
        answer = pool.release(torch.full((2, 3), float(value)))
        assert answer.tolist() == [[value] * 3] * 2
        where.add(answer.data_ptr())
        del answer
    assert len(where) == 1 and (pool.answer_hits, pool.answer_misses) == (3, 1)
    rows = [pool.release(torch.full((2, 3), float(value))).unbind(0)[1] for value in range(12)]
    assert [row.tolist() for row in rows] == [[value] * 3 for value in range(12)]
    assert pool.held > 0
    hits = pool.answer_hits
    rows.clear()
    pool.release(torch.ones(2, 3))
    assert pool.answer_hits == hits + 1


def test_a_large_answer_is_not_copied_unless_it_is_the_input() -> None:
    pool = BufferPool()
    large = torch.ones(LARGEST_ANSWER // 4 + 1)
    assert pool.release(large) is large
    batch = pool.collate([large])
    own = pool.release(batch)
    assert own.data_ptr() != batch.data_ptr() and torch.equal(own, batch)
    assert pool.answer_hits == pool.answer_misses == 0


@pytest.mark.parametrize(
    "answer",
    [
        torch.ones(2, 3).t(),
        torch.ones(2, 1).expand(2, 4),
        torch.ones(2, 0),
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, 3, dtype=torch.bfloat16),
        torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.ones(2, 3).to_sparse(),
    ],
    ids=["transposed", "expanded", "empty", "bool", "bfloat16", "channels last", "sparse"],
)
def test_answers_of_every_layout_stay_equal(answer: torch.Tensor) -> None:
    pool = BufferPool()
    found = pool.release([answer, (answer,)])
    assert type(found) is list and type(found[1]) is tuple
    for one in (found[0], found[1][0]):
        assert one.shape == answer.shape and one.dtype == answer.dtype
        assert torch.equal(one.to_dense() if one.is_sparse else one, answer.to_dense() if one.is_sparse else answer)


def test_buffers_made_in_one_mode_can_be_written_in_the_other() -> None:
    """Warm-up may run outside of the mode that requests run in."""
    pool = BufferPool()
    with torch.inference_mode():
        pool.release(pool.collate([torch.ones(4)]))
    batch = pool.collate([torch.zeros(4)])
    assert not batch.is_inference()
    batch.add_(1)
    assert pool.hits == 1


def test_a_model_may_enter_inference_mode_itself() -> None:
    pool = BufferPool()
    for value in (1.0, 2.0):
        with torch.inference_mode():
            output = torch.full((4,), value)
        assert pool.release(output).tolist() == [value] * 4
    assert pool.answer_hits == 1
