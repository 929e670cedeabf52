"""Features derived from other features: ``--map FEATURE=EXPRESSION`` and ``[traffic.map]``."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from latfix.errors import InputError
from latfix.formatting import shown
from latfix.traffic.feature_expressions import Expression
from latfix.traffic.parsed_fields import REQUEST_FIELDS, FeatureColumn

_INT64_MAX = 2**63 - 1
_EXPECTED = "features from which the expression gives a finite number"
#: Called with the position of a row, what was found and what was expected.
OnProblem = Callable[[int, str, str], None]


def parse_mapping(mapping: Mapping[str, str]) -> dict[str, Expression]:
    """The expressions of ``mapping``, in its order.

    :raises InputError: a name that cannot be a feature, or a text that is not an expression.
    """
    return {name: parse_derived(name, source, "map") for name, source in mapping.items()}


def parse_derived(name: str, source: str, where: str) -> Expression:
    """The expression of one derived feature; ``where`` (option, or file, line and table) starts a message.

    :raises InputError: a name that cannot be a feature, or a text that is not an expression.
    """
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InputError(f"{where}: found feature name {shown(name)}; expected a name like input_tokens")
    if name in REQUEST_FIELDS:
        raise InputError(f"{where} {name}: found a field of the request; expected the name of a feature")
    if not isinstance(source, str):
        raise InputError(f"{where} {name}: found {shown(source)}; expected an expression in quotes")
    return Expression.parse(source, f"{where} {name}")


def parse_map_option(options: Sequence[str], expected: str = "FEATURE=EXPRESSION") -> dict[str, str]:
    """Parse ``FEATURE=EXPRESSION`` texts of the command line into a mapping.

    :param expected: for the message.
    :raises InputError: no ``=``, or a feature twice.
    """
    mapping: dict[str, str] = {}
    for option in options:
        name, equals, expression = option.partition("=")
        name = name.strip()
        if not equals or not name or not expression.strip():
            raise InputError(f"--map: found {shown(option)}; expected {expected}")
        if name in mapping:
            raise InputError(f"--map: found {name} twice; expected each feature once")
        mapping[name] = expression.strip()
    return mapping


def map_columns(
    features: Mapping[str, FeatureColumn],
    rows: int,
    mapping: Mapping[str, str],
    on_problem: OnProblem,
    file: Path | str = "traffic",
) -> dict[str, FeatureColumn]:
    """``features`` plus those that ``mapping`` derives; later expressions may use earlier ones.

    :param features: columns of ``rows`` values each, ``None`` if absent.
    :param file: the traffic's, for messages.
    :param on_problem: called for a row that has no value for an expression; its value becomes absent.
    :raises InputError: an expression reads a feature that neither the traffic nor an earlier expression has.
    """
    columns = dict(features)
    for name, expression in parse_mapping(mapping).items():
        for used in expression.names:
            if used not in columns:
                have = ", ".join(columns) or "none"
                raise InputError(
                    f"{file}: map {name}: found unknown feature {used!r} in {expression.source!r}; expected one of "
                    f"its features: {have}"
                )
        columns[name] = _mapped(name, expression, columns, rows, on_problem)
    return columns


def _mapped(
    name: str, expression: Expression, columns: Mapping[str, FeatureColumn], rows: int, on_problem: OnProblem
) -> FeatureColumn:
    used = expression.names
    inputs = [columns[feature] for feature in used]
    mapped: FeatureColumn = []
    for row in range(rows):
        values = {feature: column[row] for feature, column in zip(used, inputs, strict=True)}
        absent = next((feature for feature, value in values.items() if value is None), None)
        if absent is not None:
            on_problem(row, f"no feature {absent} (map {name})", _EXPECTED)
            mapped.append(None)
            continue
        try:
            value: Any = expression.evaluate(values)
        except ValueError as error:
            on_problem(row, f"{error} (map {name})", _EXPECTED)
            mapped.append(None)
            continue
        if isinstance(value, int) and abs(value) > _INT64_MAX:
            on_problem(row, f"a whole number beyond 64 bits (map {name})", _EXPECTED)
            value = None
        mapped.append(value)
    return mapped
