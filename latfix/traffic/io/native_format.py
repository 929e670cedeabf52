"""latfix's own traffic format: ``arrival_s`` and, optionally, id, priority, session, deadline and payload."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from latfix.files.strict_json import refuse_constant
from latfix.formatting import shown
from latfix.request import PRIORITIES
from latfix.traffic.io.raw_table import RawTable, convert, instants
from latfix.traffic.parsed_fields import NORMAL, REQUEST_FIELDS, FeatureColumn, Fields
from latfix.traffic.value_parsers import (
    Unreadable,
    cell_feature,
    clean_text,
    deadline_ms,
    feature,
    is_not_finite,
    label,
)

_PRIORITY = {name: index for index, name in enumerate(PRIORITIES)}


def read_native(table: RawTable, kinds: Mapping[str, str]) -> Fields:
    """The fields of a native file.

    :param kinds: feature kinds (``int``, ``float``, ``text``) from a sidecar; CSV cells of a ``text`` column are not
        parsed as numbers.
    """
    if table.container == "csv":
        for name, values in table.columns.items():
            table.columns[name] = [value if value != "" else None for value in values]
    features = {}
    for name, values in table.columns.items():
        if name in REQUEST_FIELDS:
            continue
        column = _feature_column(table, name, values, kinds.get(name))
        if any(value is not None for value in column):
            features[name] = column
    return Fields(
        arrival_ns=instants(table, "arrival_s"),
        relative=True,
        ids=_unique(table, table.convert("id", label, None)),
        priority=table.convert("priority", _priority, NORMAL),
        sessions=table.convert("session", label, None),
        deadline_ms=table.convert("deadline_ms", deadline_ms, math.nan),
        features=features,
        payloads=_payloads(table),
        notes={"format": f"native-{table.container}"},
    )


def _priority(value: Any) -> int:
    if value is None:
        return NORMAL
    if isinstance(value, str) and value in _PRIORITY:
        return _PRIORITY[value]
    raise Unreadable(shown(value), "high, normal or low")


def _unique(table: RawTable, ids: list[str | None]) -> list[str | None]:
    seen: dict[str, int] = {}
    for name, line in zip(ids, table.lines, strict=True):
        if name is None or line in table.problems.by_line:
            continue
        first = seen.setdefault(name, line)
        if first != line:
            what = "row" if table.problems.by_row else "line"
            table.problems.add(line, f"id {shown(name)}, also on {what} {first}", "ids that differ")
    return ids


def _feature_column(table: RawTable, name: str, values: Sequence[Any], kind: str | None) -> FeatureColumn:
    present = next(
        (line for line, value in zip(table.lines, values, strict=True) if value is not None), table.lines[0]
    )
    if not name or len(name) > 200 or not name.isprintable():
        table.problems.add(present, f"feature name {shown(name)}", "a printable name of 1 to 200 characters")
        return [None] * len(values)
    if table.container == "csv":
        return _cell_column(table, name, values, kind)
    if table.container == "parquet":  # NaN is an absent number
        values = [None if isinstance(value, float) and math.isnan(value) else value for value in values]
    return _one_kind(table, name, convert(values, feature, None, table, name))


def _one_kind(table: RawTable, name: str, column: FeatureColumn) -> FeatureColumn:
    """Require a column of only numbers or only texts; the first value decides, and the others are problems."""
    kinds = {type(value) for value in column if value is not None}
    if str not in kinds or kinds == {str}:
        return column
    first = next(index for index, value in enumerate(column) if value is not None)
    text = isinstance(column[first], str)
    what = "row" if table.problems.by_row else "line"
    expected = f"{'a text' if text else 'a number'}, as on {what} {table.lines[first]}"
    for index, value in enumerate(column):
        if value is not None and isinstance(value, str) != text:
            table.problems.add(table.lines[index], shown(value), expected, field_name=name)
            column[index] = None
    return column


def _cell_column(table: RawTable, name: str, cells: Sequence[Any], kind: str | None) -> FeatureColumn:
    """A column of CSV, which has no types: numbers if every cell that is not blank is one, else texts."""
    texts = convert(cells, lambda cell: None if cell is None else clean_text(cell), None, table, name)
    if kind == "text":
        return texts
    numbers = convert(texts, lambda cell: None if cell is None else cell_feature(cell), None, table, name)
    bad = [
        (line, text)
        for line, text, number in zip(table.lines, texts, numbers, strict=True)
        if text is not None and number is None and line not in table.problems.by_line
    ]
    if not bad:
        return [None if number is None else float(number) for number in numbers] if kind == "float" else numbers
    if kind is None and not all(is_not_finite(text) for _, text in bad):
        return texts
    for line, text in bad:
        table.problems.add(line, shown(text), "a finite number, as on the other lines", field_name=name)
    return numbers


def _payloads(table: RawTable) -> list[Any]:
    if table.json_payload:
        return table.convert("payload", _json_text, None)
    return table.columns.get("payload") or [None] * len(table.lines)


def _json_text(value: Any) -> Any:
    """The JSON value of a payload's text; nested Parquet values are accepted if JSON has them."""
    if value is None:
        return None
    text = value if isinstance(value, str) else _dumped(value)
    try:
        payload = json.loads(text, parse_constant=refuse_constant)
        json.dumps(payload, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Unreadable(shown(text), "JSON text", 'a bare text is written "in double quotes"') from error
    return payload


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Unreadable(shown(value), "a value that JSON has") from error
