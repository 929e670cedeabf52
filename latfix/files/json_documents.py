"""JSON documents of dataclasses: annotations define how they are written, read and described.

A field is a key of the same name. Numbers that are not finite are written as ``null`` and read as NaN; a lower bound
(:mod:`latfix.lower_bound`) is written as ``null`` with a second key, ``p99_at_least``. Reading skips unknown
keys, unless a field keeps them, and fills in what an older version did not write, if there is an obvious
value: the field's default, ``None``, an empty list or object. A type with a JSON form of its own
has ``to_json``, ``from_json`` and ``JSON_SCHEMA``.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from latfix.errors import InputError
from latfix.files.regular_file import check_regular
from latfix.files.strict_json import read_json
from latfix.formatting import shown
from latfix.lower_bound import SUFFIX, AtLeast, restored

T = TypeVar("T")

_HOW = "latfix.json"


@dataclass(frozen=True, slots=True)
class _How:
    """How a field is written; see :func:`json_key`."""

    path: str = ""
    omit_empty: bool = False
    objects: tuple[str, ...] = ()
    rest: bool = False


def json_key(path: str = "", *, omit_empty: bool = False, objects: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """``metadata`` of a field that is not simply a key of the same name.

    :param path: its key; ``tail.percentile`` is a key of the object ``tail``.
    :param omit_empty: omit the key if the value is ``None``, the default itself, or as empty as the default.
    :param objects: the value is a list of tuples, each written as an object with these keys.
    """
    return {_HOW: _How(path, omit_empty, objects)}


#: ``metadata`` of a mapping that keeps keys that no other field reads and writes them again.
OTHER_KEYS: Mapping[str, Any] = {_HOW: _How(rest=True)}
#: ``metadata`` of a field that is not written; it needs a default.
HIDDEN: Mapping[str, Any] = {_HOW: None}


class Document:
    """A dataclass with a JSON document.

    ``SCHEMA`` names a whole document and its version; parts of documents have none. ``COMPUTED`` lists the keys of
    properties that are written and not read.
    """

    __slots__ = ()
    SCHEMA: ClassVar[str] = ""
    COMPUTED: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """The document, of JSON values."""
        document: dict[str, Any] = {"schema": self.SCHEMA} if self.SCHEMA else {}
        for entry in _entries(type(self)):
            value = getattr(self, entry.name)
            if entry.how.rest:
                document |= plain(value)
                continue
            if entry.how.omit_empty and (
                value is None or value is entry.default or (entry.default is not None and not value)
            ):
                continue
            *above, last = entry.path
            place = document
            for name in above:
                place = place.setdefault(name, {})
            if entry.how.objects:
                place[last] = [dict(zip(entry.how.objects, map(plain, each), strict=True)) for each in value]
            else:
                place |= _members([(last, value)])
        return document

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read a document, also of an older or newer version.

        :raises InputError: it is another document, or a value has another type than latfix writes.
        """
        return _read(cls, document, "")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One key of a document."""

    name: str
    path: tuple[str, ...]
    hint: Any
    how: _How
    default: Any
    computed: bool = False


_KNOWN: dict[type, tuple[_Entry, ...]] = {}


def _entries(cls: type) -> tuple[_Entry, ...]:
    if cls not in _KNOWN:
        _KNOWN[cls] = tuple(_entries_of(cls))
    return _KNOWN[cls]


def _entries_of(cls: Any) -> Iterator[_Entry]:
    hints = get_type_hints(cls)
    for one in fields(cls):
        how = one.metadata.get(_HOW, _How())
        if how is not None:
            path = tuple((how.path or one.name).split("."))
            default = one.default if one.default_factory is MISSING else one.default_factory
            yield _Entry(one.name, path, hints[one.name], how, default)
    for name in cls.COMPUTED:
        path = tuple(name.split("."))
        hint = get_type_hints(getattr(cls, path[-1]).fget)["return"]
        yield _Entry(path[-1], path, hint, _How(), MISSING, computed=True)


def plain(value: Any) -> Any:
    """A value as JSON: documents, mappings and sequences recursively; ``null`` for numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, Mapping):
        return _members(value.items())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def _members(entries: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Keys of an object; a lower bound is ``null`` plus a key for the bound."""
    found = {}
    for name, each in entries:
        found[str(name)] = plain(each)
        if isinstance(each, AtLeast):
            found[f"{name}{SUFFIX}"] = each.bound
    return found


def _read(cls: type[T], document: Any, at: str) -> T:
    if not isinstance(document, Mapping):
        raise _wrong(at, document, "an object")
    schema = getattr(cls, "SCHEMA", "")
    if schema and document.get("schema", schema) != schema:
        raise _wrong(f"{at}schema", document["schema"], repr(schema))
    values: dict[str, Any] = {}
    for entry in _entries(cls):
        if entry.computed:
            continue
        if entry.how.rest:
            known = {"schema", *(each.path[0] for each in _entries(cls))}
            values[entry.name] = {name: value for name, value in document.items() if name not in known}
            continue
        place = _at(document, entry.path)
        where = f"{at}{'.'.join(entry.path)}"
        if place is None and isinstance(
            bound := _at(document, (*entry.path[:-1], entry.path[-1] + SUFFIX)), int | float
        ):
            values[entry.name] = AtLeast(bound)
        elif place is not MISSING:
            values[entry.name] = _value(entry.hint, place, where, entry.how.objects)
        elif entry.default is MISSING:
            values[entry.name] = _absent(entry.hint, where)
    return cls(**values)


def _at(document: Any, path: Sequence[str]) -> Any:
    for name in path:
        document = document.get(name, MISSING) if isinstance(document, Mapping) else MISSING
    return document


def _value(hint: Any, value: Any, at: str, objects: tuple[str, ...] = ()) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _one_of(get_args(hint), value, at)
    if origin is Literal:
        return _scalar(str, value, at)
    if origin is tuple:
        return _tuple(get_args(hint), value, at, objects)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(at, value, "an object")
        inner = get_args(hint)[1]
        found = {name: _value(inner, each, f"{at}.{name}") for name, each in value.items()}
        return restored(found) if inner is float else found
    if isinstance(hint, type) and issubclass(hint, Document):
        return _read(hint, value, f"{at}.")
    if hasattr(hint, "from_json"):
        return hint.from_json(value)
    return _scalar(hint, value, at)


def _one_of(hints: tuple[Any, ...], value: Any, at: str) -> Any:
    if value is None and types.NoneType in hints:  # may also be a number that was not finite
        return None
    known = [hint for hint in hints if hint is not types.NoneType]
    if len(known) == 1:
        return _value(known[0], value, at)
    if not isinstance(value, tuple(known)):
        raise _wrong(at, value, " or ".join(hint.__name__ for hint in known))
    return value


def _tuple(hints: tuple[Any, ...], value: Any, at: str, objects: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(at, value, "a list")
    if hints[-1] is Ellipsis:
        if objects and all(isinstance(each, Mapping) for each in value):
            value = [[each.get(name) for name in objects] for each in value]
        return tuple(_value(hints[0], each, f"{at}[{k}]") for k, each in enumerate(value))
    if len(value) != len(hints):
        raise _wrong(at, value, f"{len(hints)} values")
    return tuple(_value(hint, each, f"{at}[{k}]") for k, (hint, each) in enumerate(zip(hints, value, strict=True)))


def _scalar(hint: type, value: Any, at: str) -> Any:
    if hint is float:
        if value is None:
            return math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise _wrong(at, value, "a number")
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise _wrong(at, value, {int: "a whole number", bool: "true or false", str: "a text"}.get(hint, "a value"))
    return value


def _absent(hint: Any, at: str) -> Any:
    """The value for a key that an older version did not write."""
    origin = get_origin(hint)
    if types.NoneType in get_args(hint):
        return None
    if origin is tuple:
        return ()
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {}
    if hint is float:
        return math.nan
    raise InputError(f"found no {at}; expected what latfix writes there")


def _wrong(at: str, value: Any, expected: str) -> InputError:
    return InputError(f"found {at.strip('.') or 'a document'} = {shown(value)}; expected {expected}")


def read_document(path: Path) -> Any:
    """The JSON object in a file.

    :raises InputError: the file cannot be read or holds no object.
    """
    check_regular(path, "JSON written by latfix", folders=False)
    try:
        document = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: found an unreadable file ({error}); expected JSON written by latfix") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: found JSON that is no object; expected what latfix writes with --json")
    return document


def json_schema(cls: type[Document]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document, with the descriptions of the type's docstring."""
    parts: dict[str, Any] = {}
    top = _object_schema(cls, parts)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": cls.SCHEMA or cls.__name__}
    return {**head, **top, **({"$defs": dict(sorted(parts.items()))} if parts else {})}


def _object_schema(cls: type[Document], parts: dict[str, Any]) -> dict[str, Any]:
    text = cls.__doc__ or ""
    described = {name: " ".join(words.split()) for name, words in _PARAM.findall(text)}
    schema: dict[str, Any] = {"type": "object", "description": text.strip().partition("\n\n")[0], "properties": {}}
    if cls.SCHEMA:
        schema["properties"]["schema"] = {"const": cls.SCHEMA}
    for entry in _entries(cls):
        if entry.how.rest:
            continue
        place = schema["properties"]
        *above, last = entry.path
        for name in above:
            place = place.setdefault(name, {"type": "object", "properties": {}})["properties"]
        if entry.how.objects:
            inner = zip(entry.how.objects, get_args(get_args(entry.hint)[0]), strict=True)
            each = {name: _schema(hint, parts) for name, hint in inner}
            place[last] = {"type": "array", "items": {"type": "object", "properties": each}}
        else:
            place[last] = _schema(entry.hint, parts)
        if entry.name in described:
            place[last] = {**place[last], "description": described[entry.name]}
    optional = {entry.path[0] for entry in _entries(cls) if entry.how.omit_empty}
    return {**schema, "required": [name for name in schema["properties"] if name not in optional]}


_PARAM = re.compile(r":param (\w+):\s+(.*?)(?=\n\s*:|\n\s*\n|\Z)", re.DOTALL)
_SCALARS = {float: ["number", "null"], int: "integer", bool: "boolean", str: "string", types.NoneType: "null"}


def _schema(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(each, parts) for each in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[-1] is Ellipsis:
        return {"type": "array", "items": _schema(inner[0], parts)}
    if origin is tuple:
        return {"type": "array", "prefixItems": [_schema(each, parts) for each in inner], "items": False}
    if origin is not None:
        return {"type": "object", "additionalProperties": _schema(inner[1], parts)}
    if hasattr(hint, "JSON_SCHEMA"):
        return dict(hint.JSON_SCHEMA)
    if hint.__name__ not in parts:
        parts[hint.__name__] = {}  # a placeholder: a type may contain itself
        parts[hint.__name__] = _object_schema(hint, parts)
    return {"$ref": f"#/$defs/{hint.__name__}"}
