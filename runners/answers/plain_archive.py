"""Nested values of answers as one file of plain arrays and JSON: nothing in it is executed when it is read.

In the JSON tree a number, text, truth value or ``None`` is itself; a list, tuple, dict, array or tensor is an object
with one key that names its kind. The elements of all arrays of a type are concatenated into one array of the file.
"""

from __future__ import annotations

import contextlib
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import InputError, input_error
from latfix.files.regular_file import check_regular
from latfix.runners.answers.named_outputs import Array

_SCHEMA = "latfix.outputs/1"
_EXPECTED = f"a model's answers as {_SCHEMA}, plain arrays and JSON"
_TREE = "tree"
_DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,  # raised by zipfile for an unknown compression
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


class Unwritable(ValueError):
    """A value that is neither plain, nor an array or tensor of plain elements."""


def save(file: Path, value: Any) -> None:
    """Write a value of tensors, arrays, numbers, texts, truth values, lists, tuples, dicts and ``None``.

    :raises Unwritable: it contains a value of another type, including subclasses; nothing was written.
    """
    pools: dict[str, list[Array]] = {}
    try:
        tree = json.dumps({"schema": _SCHEMA, "value": _Writer(pools).plain(value)})
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; a list that holds itself
        raise Unwritable(str(error)) from error
    arrays: dict[str, Any] = {name: np.concatenate(parts) for name, parts in pools.items()}
    arrays[_TREE] = np.frombuffer(tree.encode(), dtype=np.uint8)
    np.savez(file, **arrays)


def load(file: Path) -> Any:
    """Read what :func:`save` wrote; tensors are on the CPU.

    :raises InputError: it is another file, a damaged one, or from a version that wrote pickles.
    """
    with _opened(file) as (tree, archive):
        return _restored(tree, {name: archive[name] for name in archive.files if name != _TREE})


def check(file: Path) -> None:
    """Check that :func:`load` knows a file, without reading its arrays.

    :raises InputError: it does not.
    """
    with _opened(file):
        pass


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tuple[Any, Any]]:
    """The JSON tree and the archive."""
    check_regular(file, _EXPECTED)
    if file.is_file() and not zipfile.is_zipfile(file):
        raise _refused(file, "no archive of arrays")
    try:
        with np.load(file, allow_pickle=False) as archive:
            yield _tree(file, archive), archive
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise _refused(file, f"a file that cannot be read ({reason})") from error


def _refused(file: Path, found: str) -> InputError:
    return input_error(file, None, found, _EXPECTED, "start again in another folder")


def _tree(file: Path, archive: Mapping[str, Array]) -> Any:
    if _TREE not in archive:
        raise _refused(file, "an archive of an older version, with pickles that can run any code")
    document = json.loads(archive[_TREE].tobytes())
    if document["schema"] != _SCHEMA:
        raise _refused(file, f"schema {str(document['schema'])[:40]!r}")
    return document["value"]


class _Writer:
    """Makes the JSON tree of a value, and moves the elements of arrays into pools by type."""

    def __init__(self, pools: dict[str, list[Array]]) -> None:
        self._pools = pools
        self._sizes: dict[str, int] = {}

    def plain(self, value: Any) -> Any:
        kind = type(value)  # not isinstance: a subclass would be read back as its base class
        if value is None or kind in (bool, int, float, str):
            return value
        if kind in (list, tuple):
            return {kind.__name__: [self.plain(item) for item in value]}
        if kind is dict:
            return {"dict": [[self.plain(key), self.plain(item)] for key, item in value.items()]}
        if kind is np.ndarray:
            return {"array": self._pooled(value)}
        if isinstance(value, np.generic):
            return {"scalar": self._pooled(np.asarray(value))}
        return {"tensor": self._tensor(value)}

    def _tensor(self, value: Any) -> Any:
        import torch

        if type(value) is not torch.Tensor or value.layout != torch.strided or value.device.type != "cpu":
            raise Unwritable(f"a {type(value).__name__}")
        value = value.detach()
        try:
            array = value.resolve_conj().resolve_neg().numpy()
        except TypeError as error:  # NumPy has no bfloat16 and no float8; float32 represents their values exactly
            if not value.is_floating_point():
                raise Unwritable(f"a tensor of {value.dtype}") from error
            array = value.float().numpy()
        return [str(value.dtype).removeprefix("torch."), *self._pooled(array)]

    def _pooled(self, array: Array) -> list[Any]:
        """Type, position of the first element, and shape."""
        if array.dtype.hasobject or array.dtype.names:
            raise Unwritable(f"an array of {array.dtype}")
        name = array.dtype.str
        first = self._sizes.get(name, 0)
        self._pools.setdefault(name, []).append(array.ravel())
        self._sizes[name] = first + array.size
        return [name, first, list(array.shape)]


def _restored(tree: Any, pools: Mapping[str, Array]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, held),) = tree.items()
    match kind:
        case "list":
            return [_restored(item, pools) for item in held]
        case "tuple":
            return tuple(_restored(item, pools) for item in held)
        case "dict":
            return {_restored(key, pools): _restored(item, pools) for key, item in held}
        case "array":
            return _array(held, pools)
        case "scalar":
            return _array(held, pools)[()]
        case "tensor":
            return _tensor(held, pools)
    raise ValueError(f"a value of kind {kind!r}")


def _array(held: Any, pools: Mapping[str, Array]) -> Array:
    name, first, shape = held
    return pools[name][first : first + math.prod(shape)].reshape(shape)


def _tensor(held: Any, pools: Mapping[str, Array]) -> Any:
    import torch

    name, *where = held
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"a tensor of {name!r}")
    return torch.from_numpy(_array(where, pools)).to(dtype)
