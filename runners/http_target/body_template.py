"""Bodies and targets of requests: templates in which ``{name}`` stands for a value of the recorded request.

That of bodies is parsed and filled in as JSON: a string that is exactly ``"{payload}"`` becomes the value itself, of
any type; ``"id-{id}"`` stays a string that contains the value, escaped by the encoder. No value can close a quotation
mark or add a key. Within a target, values are percent-encoded. ``{{`` and ``}}`` are literal braces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from latfix.errors import InputError
from latfix.files.strict_json import read_json
from latfix.formatting import did_you_mean
from latfix.request import Request
from latfix.traffic.schedule import Traffic

_MARK = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_OWN = ("payload", "id", "priority", "session", "arrival_s", "features")
#: Number of requests whose values are looked up before anything is sent.
_LOOKED_AT = 1000

Fill = Callable[[Mapping[str, Any]], Any]


class BodyTemplate:
    """A JSON document with placeholders.

    :param text: JSON.
    :param where: source of the text, for messages.
    :param text_of: a value within a string.
    :raises InputError: it is not JSON, or a placeholder has no name.
    """

    def __init__(self, text: str, where: str = "--body", text_of: Callable[[Any], str] | None = None) -> None:
        self.text, self._where, self._text_of = text, where, text_of or _text
        try:
            document = read_json(text)
            encoded(document)
        except (ValueError, RecursionError) as error:
            reason = (
                f"{error.msg} in column {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
            )
            raise InputError(
                f"{where}: found no JSON ({reason}); expected a template such as "
                """'{"inputs": "{payload}"}', with quotation marks around each place"""
            ) from error
        self.names: dict[str, None] = {}
        self._fill = self._compiled(document)

    def check(self, traffic: Traffic) -> None:
        """Check that the traffic has all values that the template names.

        :raises InputError: a placeholder has no value; the message lists the available ones.
        """
        known = (*_OWN, *traffic.features)
        for name in self.names:
            if name.partition(".")[0] not in known and name not in known:
                raise InputError(
                    f"{self._where}: found {{{name}}}, which the traffic does not have; expected one of "
                    f"{', '.join(known)}; {did_you_mean(name, known, 'see latfix traffic inspect')}"
                )
        for k in range(min(len(traffic), _LOOKED_AT)):
            self.fill(traffic.request(k))

    def render(self, request: Request) -> bytes:
        """The body of one request; an InputError if its payload lacks a key that the template names."""
        return encoded(self.fill(request))

    def fill(self, request: Request) -> Any:
        """The document of one request.

        :raises InputError: its payload lacks a key that the template names.
        """
        try:
            return self._fill(_values(request))
        except LookupError as error:
            raise InputError(
                f"{self._where}: found {{{error.args[0]}}}, which request {request.id!r} does not have; "
                "expected a key of its payload"
            ) from error

    def _compiled(self, node: Any) -> Fill:
        if isinstance(node, dict):
            pairs = [(self._compiled_text(key), self._compiled(value)) for key, value in node.items()]
            return lambda values: {self._text_of(key(values)): fill(values) for key, fill in pairs}
        if isinstance(node, list):
            fills = [self._compiled(value) for value in node]
            return lambda values: [fill(values) for fill in fills]
        if isinstance(node, str):
            return self._compiled_text(node)
        return lambda _values: node

    def _compiled_text(self, text: str) -> Fill:
        parts: list[tuple[bool, str]] = []  # a name, or literal text
        end = 0
        for mark in _MARK.finditer(text):
            name = None if mark.group(1) is None else mark.group(1).strip()
            if name == "" or mark.group(0) in ("{", "}"):
                raise InputError(
                    f"{self._where}: found a brace without a name in {text[:60]!r}; "
                    "expected {name}, or {{ and }} for braces"
                )
            if name is not None:
                self.names[name] = None
            parts += [(False, text[end : mark.start()]), (name is not None, name or mark.group(0)[0])]
            end = mark.end()
        parts = [part for part in [*parts, (False, text[end:])] if part[1]]
        if len(parts) == 1 and parts[0][0]:
            return lambda values: look_up(values, parts[0][1])
        if not any(is_name for is_name, _ in parts):
            literal = "".join(word for _, word in parts)
            return lambda _values: literal
        return lambda values: "".join(
            self._text_of(look_up(values, word)) if is_name else word for is_name, word in parts
        )


def target_template(target: str) -> BodyTemplate:
    """The template of a URL's path and query; an InputError if a placeholder has no name."""
    return BodyTemplate(json.dumps(target), "the URL", lambda value: quote(_text(value), safe=""))


def read_template(option: str) -> BodyTemplate:
    """The template of ``--body``: JSON, or the name of a file that holds it; an InputError for neither."""
    if option.lstrip()[:1] in ("{", "[", '"'):
        return BodyTemplate(option)
    path = Path(option.removeprefix("@"))
    try:
        return BodyTemplate(path.read_text(encoding="utf-8"), where=str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: found bytes that are not UTF-8; expected a JSON template") from error
    except OSError as error:
        raise InputError(
            f"--body: found {option[:80]!r}, which is neither JSON nor a file ({error.strerror}); "
            """expected a template such as '{"inputs": "{payload}"}'"""
        ) from error


def encoded(document: Any) -> bytes:
    """A document as JSON without spaces.

    :raises ValueError: it has a number that JSON cannot hold, or half of a surrogate pair.
    """
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def look_up(values: Mapping[str, Any], name: str) -> Any:
    """A value by name; ``payload.key.0`` descends into objects and lists. A missing feature is ``None``.

    :raises LookupError: the payload lacks the key; the argument is the name.
    """
    if name in values:
        return values[name]
    head, _, rest = name.partition(".")
    value = values.get(head)
    for key in rest.split(".") if rest else ():
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise LookupError(name)
    return value


def _values(request: Request) -> dict[str, Any]:
    features = dict(request.features)
    return {**features, **{name: getattr(request, name) for name in _OWN}, "features": features}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
