"""Binds variable dimensions of a model file to features of a request, and checks the sizes."""

from __future__ import annotations

import keyword
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from latfix.config.model_input_rules import BATCH
from latfix.config.workload_toml import SPEC_FILE
from latfix.errors import InputError
from latfix.files.toml_writer import toml_key
from latfix.request import FeatureValue
from latfix.runners.model_files.input_layout import LENGTH_NAME, InputLayout, Layout
from latfix.runners.model_files.opened_model import Axis
from latfix.traffic.feature_expressions import Expression
from latfix.traffic.schedule import Traffic

#: Prefixes of features that are lengths of outputs.
_OUTPUTS = ("output", "generated", "response", "completion")
_MAX_SIZE = 2**31


def bind(layout: Layout, numeric: Collection[str], wanted: Collection[str]) -> dict[str, Expression]:
    """An expression over features for each symbol in ``wanted``.

    The first that exists: the expression in ``[inputs]``; the feature of the symbol's own name; if a single symbol
    remains, the only other feature that is named like a length.

    :param numeric: names of the numeric features.
    :raises InputError: a symbol remains, or a feature is unknown; the message has the lines to write.
    """
    bound: dict[str, Expression] = {}
    for symbol in wanted:
        given = layout.expressions.get(symbol)
        if given is not None:
            unknown = [name for name in given.names if name not in numeric]
            if unknown:
                raise InputError(_unknown(layout, given, unknown[0], numeric))
            bound[symbol] = given
        elif symbol in numeric and _is_name(symbol):
            bound[symbol] = Expression.parse(symbol, symbol)
    left = [symbol for symbol in wanted if symbol not in bound]
    taken = {name for expression in bound.values() for name in expression.names}
    lengths = [name for name in numeric if _is_length(name) and _is_name(name) and name not in taken]
    if len(left) == 1 and len(lengths) == 1:
        bound[left[0]] = Expression.parse(lengths[0], lengths[0])
    elif left:
        raise InputError(_unbound(layout, left, numeric))
    return bound


def _is_length(feature: str) -> bool:
    return LENGTH_NAME.search(feature) is not None and not feature.lower().startswith(_OUTPUTS)


def _is_name(feature: str) -> bool:
    return feature.isidentifier() and not keyword.iskeyword(feature)


def _unknown(layout: Layout, expression: Expression, name: str, numeric: Collection[str]) -> str:
    return (
        f"{layout.file}: found {expression.source!r} in [inputs], but no numeric feature {name!r} in the traffic; "
        f"expected one of {_listed(numeric)}; or derive it with --map {name}=EXPRESSION"
    )


def _unbound(layout: Layout, left: Collection[str], numeric: Collection[str]) -> str:
    places = [
        f"{given.name}[{_position(given, k)}] ({axis.symbol})"
        for given in layout.inputs
        for k, axis in enumerate(given.axes or ())
        if axis.symbol in left
    ]
    lines = ", ".join(
        f"{toml_key(given.name)} = {{ shape = {_written(given, layout, left)} }}"
        for given in layout.inputs
        if any(axis.symbol in left for axis in given.axes or ())
    )
    return (
        f"{layout.file}: found variable dimensions and no feature for them: {', '.join(places)}; numeric features of "
        f"the traffic: {_listed(numeric)}; write {_where(layout)}: {lines}"
    )


def _position(given: InputLayout, place: int) -> int:
    return place + 1 if given.batch_axis is not None and given.batch_axis <= place else place


def _written(given: InputLayout, layout: Layout, left: Collection[str]) -> str:
    def word(axis: Axis) -> str:
        if axis.size is not None:
            return str(axis.size)
        known = layout.expressions.get(axis.symbol)
        if known is not None:
            return f'"{known.source}"'
        return '"FEATURE"' if axis.symbol in left else f'"{axis.symbol}"'

    words = [word(axis) for axis in given.axes or ()]
    if given.batch_axis is not None:
        words.insert(given.batch_axis, f'"{BATCH}"')
    return f"[{', '.join(words)}]"


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def numbers(features: Mapping[str, FeatureValue]) -> tuple[str, ...]:
    """Names of a request's numeric features."""
    return tuple(name for name, value in features.items() if not isinstance(value, str))


def measure(symbol: str, expression: Expression, features: Mapping[str, FeatureValue], axes: list[Axis]) -> int:
    """The size of a dimension for a request, rounded up, at least 1.

    :param axes: the dimensions with that symbol.
    :raises SizeError: the model does not take the size.
    :raises ValueError: a feature is missing or text, or the size is not finite.
    """
    try:
        size = max(math.ceil(expression.evaluate(features)), 1)
    except KeyError as error:
        raise ValueError(f"the request has no feature {error.args[0]!r}, which sets {symbol}") from error
    least, most = _limits(axes)
    if size < least:
        raise SizeError(f"{expression.source} is {size}; the model takes {least} or more")
    if most is not None and size > most:
        raise SizeError(f"{expression.source} is {size}; the model takes at most {most}")
    if size >= _MAX_SIZE:
        raise ValueError(f"{expression.source} is {size}, too large for a tensor")
    return size


def _limits(axes: list[Axis]) -> tuple[int, int | None]:
    limits = [axis.most for axis in axes if axis.most is not None]
    return max(axis.least for axis in axes), min(limits, default=None)


class SizeError(ValueError):
    """A size outside the model's limits."""


def check_traffic(layout: Layout, traffic: Traffic) -> None:
    """Check that every request provides every size that the model needs, before anything is replayed.

    A request whose payload carries the tensors needs no features.

    :raises InputError: a size is missing or out of range; the message has the lines to write.
    """
    symbols = layout.symbols()
    unknown = [given for given in layout.inputs if given.axes is None or given.dtype is None]
    for k, payload in enumerate(traffic.payloads):
        lacking = [given for given in unknown if not isinstance(payload, dict) or given.name not in payload]
        if lacking:
            raise InputError(_undescribed(layout, lacking, traffic.ids[k]))
    numeric = numeric_features(traffic)
    groups: dict[tuple[str, ...], list[int]] = {}
    for k in range(len(traffic)):
        groups.setdefault(wanted(layout, symbols, traffic.payloads[k]), []).append(k)
    for needed, rows in groups.items():
        for symbol, expression in bind(layout, numeric, needed).items():
            _check_symbol(layout, traffic, symbol, symbols[symbol], rows, expression)


def wanted(layout: Layout, symbols: Mapping[str, list[Axis]], payload: Any) -> tuple[str, ...]:
    """The symbols that no tensor in a request's payload determines."""
    if not isinstance(payload, dict):
        return tuple(symbols)
    known = {axis.symbol for given in layout.inputs if given.name in payload for axis in given.axes or ()}
    return tuple(symbol for symbol in symbols if symbol not in known)


def _check_symbol(
    layout: Layout, traffic: Traffic, symbol: str, axes: list[Axis], rows: list[int], expression: Expression
) -> None:
    # Python's numbers, as in requests: NumPy's wrap around, and only warn of a division by zero.
    columns = {name: traffic.features[name].tolist() for name in expression.names}
    seen: set[tuple[Any, ...]] = set()
    for k in rows:
        values = tuple(columns[name][k] for name in expression.names)
        if values in seen:
            continue
        seen.add(values)
        present = {
            name: value for name, value in zip(columns, values, strict=True) if value is not None and value == value
        }
        try:
            measure(symbol, expression, present, axes)
        except ValueError as error:
            advice = _clamped(axes, expression) if isinstance(error, SizeError) else ""
            raise InputError(f"{layout.file}: request {traffic.ids[k]!r}: found {error}{advice}") from error


def _clamped(axes: list[Axis], expression: Expression) -> str:
    """Advice that clamps an expression to the model's limits."""
    least, most = _limits(axes)
    clamped = expression.source
    if least > 1:
        clamped = f"max({clamped}, {least})"
    if most is not None:
        clamped = f"min({clamped}, {most})"
    return f'; if the service clamps it, write "{clamped}" in [inputs]'


def _undescribed(layout: Layout, lacking: Sequence[InputLayout], request: str) -> str:
    names = " and ".join(repr(given.name) for given in lacking)
    lacks = " and ".join(
        what
        for what, known in (("shape", [each.axes for each in lacking]), ("dtype", [each.dtype for each in lacking]))
        if None in known
    )
    lines = ", ".join(
        f'{toml_key(given.name)} = {{ shape = ["{BATCH}", "FEATURE"], dtype = "{given.dtype or "DTYPE"}" }}'
        for given in lacking
    )
    return (
        f"{layout.file}: found no {lacks} of {names} in the file, and none in the payload of request {request!r}; "
        f"write, with the model's own dimensions, {_where(layout)}: {lines}"
    )


def _where(layout: Layout) -> str:
    return f'under [inputs] in {SPEC_FILE} next to the model, with model = "{layout.file.name}" in [workload]'


def numeric_features(traffic: Traffic) -> tuple[str, ...]:
    """Names of the features that are numeric in every request that has them."""
    return tuple(
        name
        for name, column in traffic.features.items()
        if column.dtype != object or not any(isinstance(value, str) for value in column)
    )
