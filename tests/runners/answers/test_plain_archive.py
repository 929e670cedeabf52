"""Answers come back from their file as they were, and a file of something else is refused and not executed."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from latfix.errors import InputError
from latfix.runners.answers import plain_archive
from latfix.runners.answers.named_outputs import outputs_of
from latfix.runners.answers.plain_archive import Unwritable
from tests.conftest import Canary

_DTYPES: list[Any] = [
    np.float32,
    np.float64,
    np.int64,
    np.uint8,
    np.bool_,
    np.complex64,
    np.dtype("<U3"),
    np.dtype("M8[ns]"),
]
_ARRAYS = st.sampled_from(_DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
_TENSORS = st.sampled_from(
    [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64]
).flatmap(lambda dtype: st.integers(0, 4).map(lambda n: torch.arange(n).to(dtype).reshape(n, 1)))
_KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(), max_size=3)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _ARRAYS | _TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(_KEYS | st.tuples(_KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, torch.Tensor):
        values = [each.float() if each.is_floating_point() else each for each in (one, other)]
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*values)
    if isinstance(one, np.ndarray | np.generic):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool(one == other) or (one != one and other != other)


@settings(max_examples=60)
@given(value=_VALUES)
def test_a_value_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    plain_archive.save(tmp_path / "v.npz", value)
    plain_archive.check(tmp_path / "v.npz")
    assert _same(plain_archive.load(tmp_path / "v.npz"), value)


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1.5),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(12)[::5],
        torch.arange(6).reshape(2, 3).T,
        torch.tensor([1 + 2j]).conj(),
        torch.ones(2, requires_grad=True).detach(),
        {"": [], (): {}, (1, None): ()},
        "\ud800\0 ",
        -0.0,
        math.nan,
    ],
    ids=range(10),
)
def test_odd_values_come_back_too(tmp_path: Path, value: Any) -> None:
    plain_archive.save(tmp_path / "v.npz", value)
    assert _same(plain_archive.load(tmp_path / "v.npz"), value)


class _Pair(NamedTuple):
    one: int


_ITSELF: list[Any] = []
_ITSELF.append(_ITSELF)


@pytest.mark.parametrize(
    "value",
    [
        lambda: 1,
        {1, 2},
        b"x",
        10**5000,
        _Pair(1),
        OrderedDict(a=1),
        _ITSELF,
        np.array([None]),
        np.zeros(1, dtype=[("a", object)]),
        np.ma.masked_array([1]),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        torch.nn.Parameter(torch.ones(1)),
    ],
    ids=range(13),
)
def test_a_value_that_needs_a_pickle_is_not_written(tmp_path: Path, value: Any) -> None:
    with pytest.raises(Unwritable):
        plain_archive.save(tmp_path / "v.npz", [value])
    assert not (tmp_path / "v.npz").exists()


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _with_tree(value: Any, **arrays: Any) -> bytes:
    text = json.dumps({"schema": "latfix.outputs/1", "value": value})
    return _npz(tree=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)


def _zipped(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


def _npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([value], dtype=object))
    return file.getvalue()


#: By name, what a stranger, an older latfix or a full disk leaves; of the canary's pickle.
FILES: dict[str, Any] = {
    "the old form": lambda bird: _npz(scored=np.frombuffer(bird.pickle, dtype=np.uint8), told=np.array("{}")),
    "a pickle": lambda bird: bird.pickle,
    "a pickle of torch": lambda bird: _zipped("archive/data.pkl", bird.pickle),
    "objects alone": _npy,
    "objects as the tree": lambda bird: _npz(tree=np.array([bird], dtype=object)),
    "a pickle as the tree": lambda bird: _zipped("tree.npy", bird.pickle),
    "an array of objects": lambda bird: _with_tree({"array": ["|O", 0, [1]]}, **{"|O": np.array([bird], object)}),
    "another schema": lambda _: _npz(tree=np.frombuffer(b'{"schema": "x/9"}', dtype=np.uint8)),
    "no object": lambda _: _npz(tree=np.frombuffer(b"[]", dtype=np.uint8)),
    "an unknown kind": lambda _: _with_tree({"call": ["os.mkdir"]}),
    "a function of torch": lambda _: _with_tree({"tensor": ["load", "<f4", 0, [1]]}, **{"<f4": np.ones(1, "f4")}),
    "too few elements": lambda _: _with_tree({"array": ["<f4", 0, [9]]}, **{"<f4": np.ones(1, "f4")}),
    "no such array": lambda _: _with_tree({"array": ["<f4", 0, [1]]}),
    "a list as a key": lambda _: _with_tree({"dict": [[{"list": []}, 1]]}),
    "too deep": lambda _: _npz(tree=np.frombuffer(b"[" * 100_000, dtype=np.uint8)),
    "half a file": lambda _: _with_tree([1, 2, 3])[:150],
    "an empty file": lambda _: b"",
}


@pytest.mark.parametrize("what", FILES)
def test_another_file_is_refused_in_one_line_and_not_executed(tmp_path: Path, canary: Canary, what: str) -> None:
    file = tmp_path / "v.npz"
    file.write_bytes(FILES[what](canary))
    with pytest.raises(InputError) as caught:
        plain_archive.load(file)
    message = caught.value.message
    assert message.startswith(f"{file}: found ") and message.endswith("start again in another folder")
    assert "\n" not in message


def test_the_canary_sings_where_a_pickle_is_read(tmp_path: Path) -> None:
    bird = Canary(tmp_path / "canary")
    pickle.loads(bird.pickle)
    assert bird.sang


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "v.npz")
    with pytest.raises(InputError, match="found no regular file"):
        plain_archive.check(tmp_path / "v.npz")


def test_numbers_beyond_64_bits_are_texts_in_an_answer() -> None:
    """An array of objects cannot be written."""
    ((_, values),) = outputs_of([10**30, 1])
    assert values.tolist() == [str(10**30), "1"]
    assert outputs_of(np.array([["a"], ["b"]], dtype=object))[0].values.tolist() == [["a"], ["b"]]
