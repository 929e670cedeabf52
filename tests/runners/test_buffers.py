"""The buffer pool: the same batches as the default collate, from memory that is already there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.runners.buffers import BufferPool
from latfix.workload import default_collate

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


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b))


@settings(deadline=None)
@given(st.lists(st.one_of(tensor_batches(), nested_batches()), min_size=1, max_size=6))
def test_equal_to_the_default_collate_batch_after_batch(batches: list[list[Any]]) -> None:
    pool = BufferPool()
    for batch in batches:
        assert _equal(pool.collate(batch), default_collate(batch))


def test_a_buffer_is_reused_and_old_contents_do_not_shine_through() -> None:
    pool = BufferPool()
    first = pool.collate([torch.ones(8), torch.ones(8)])
    where = first.data_ptr()

    second = pool.collate([torch.full((3,), 2.0), torch.full((1,), 2.0)])

    assert second.data_ptr() == where
    assert second.tolist() == [[2, 2, 2], [2, 0, 0]]
    assert (pool.hits, pool.misses) == (1, 1)


def test_a_buffer_grows_by_half_at_least() -> None:
    pool = BufferPool()
    pool.collate([torch.ones(100)])
    pool.collate([torch.ones(101)])
    pool.collate([torch.ones(149)])
    assert (pool.hits, pool.misses) == (1, 2)


def test_columns_of_one_dtype_do_not_share_a_buffer() -> None:
    pool = BufferPool()
    batch = pool.collate([(torch.ones(4), torch.zeros(4))])
    assert batch[0].tolist() == [[1, 1, 1, 1]]
    assert batch[1].tolist() == [[0, 0, 0, 0]]


def test_shapes_that_cannot_be_batched_are_refused() -> None:
    with pytest.raises(ValueError, match="differ beyond dimension 0"):
        BufferPool().collate([torch.ones(2, 3), torch.ones(2, 4)])


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
    kept = pool.release({"same": batch, "view": (batch[:, 1:],), "own": (own := torch.ones(2))})
    pool.collate([torch.zeros(3), torch.zeros(3)])
    assert kept["same"].eq(1).all() and kept["view"][0].eq(1).all()
    assert kept["own"] is own
