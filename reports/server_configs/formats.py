"""File formats of other servers: protobuf text, YAML, properties, shell and Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

#: Keys that YAML 1.1 reads as booleans or null unless quoted.
_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


class Symbol(str):
    """A name that protobuf text writes without quotes, such as ``KIND_GPU``."""

    __slots__ = ()


def protobuf_text(message: Mapping[str, Any]) -> str:
    """A message in protobuf's text format; a list is a repeated field."""
    return "".join(f"{line}\n" for line in _fields(message))


def yaml(document: Mapping[str, Any]) -> str:
    """Block-style YAML, with strings quoted as in JSON."""
    return "".join(f"{line}\n" for line in _yaml_lines(document))


def properties(pairs: Mapping[str, Any]) -> str:
    """A Java properties file of numbers and plain words."""
    return "".join(f"{key}={_plain(value)}\n" for key, value in pairs.items())


def shell_variables(pairs: Mapping[str, str]) -> str:
    """``NAME=value`` lines, quoted where a shell needs it."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in pairs.items())


def python_mapping(name: str, values: Mapping[str, Any]) -> str:
    """A dict as Python source."""
    lines = (f"    {key!r}: {value!r},\n" for key, value in values.items())
    return f"{name} = {{\n{''.join(lines)}}}\n" if values else f"{name} = {{}}\n"


def _fields(message: Mapping[str, Any]) -> Iterator[str]:
    for name, value in message.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                yield f"{name} {{"
                yield from (f"  {line}" for line in _fields(one))
                yield "}"
            else:
                yield f"{name}: {_scalar(one)}"


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        return np.format_float_positional(value, trim="0")  # YAML 1.1 reads 5e-05 as a text
    return str(value) if isinstance(value, Symbol) else json.dumps(value, ensure_ascii=False)


def _yaml_lines(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            key = json.dumps(name) if name.lower() in _WORDS else name
            if isinstance(inner, dict | list) and inner:
                yield f"{key}:"
                yield from (f"  {line}" for line in _yaml_lines(inner))
            else:
                yield f"{key}: {_scalar(inner)}"
        return
    for item in value:
        lines = list(_yaml_lines(item)) if isinstance(item, dict) else [_scalar(item)]
        yield f"- {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])


def _plain(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
