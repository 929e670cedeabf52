"""Expressions that derive a feature from others: arithmetic, ``min``, ``max`` and ``round`` only."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from latfix.arrays import Floats
from latfix.errors import InputError
from latfix.request import FeatureValue

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "round": round}
_OF_COLUMNS: dict[str, Callable[..., Any]] = {
    "min": lambda *each: reduce(np.minimum, each),
    "max": lambda *each: reduce(np.maximum, each),
    "round": np.rint,
}
_ALLOWED = "expected numbers, feature names, + - * / // %, parentheses, min(), max() and round()"


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression over a request's features.

    :param source: the text as the user wrote it.
    :param names: the features it reads.
    """

    source: str
    names: tuple[str, ...]
    _tree: ast.expr

    @classmethod
    def parse(cls, source: str, where: str) -> Expression:
        """Parse ``source``; ``where`` (option or file and key) starts the message of an error.

        :raises InputError: the text is not an allowed expression.
        """
        try:
            tree = ast.parse(source.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InputError(f"{where}: found {source!r}, which does not parse; {_ALLOWED}") from error
        names: list[str] = []
        try:
            _check(tree, names, source, where)
        except RecursionError as error:
            raise InputError(f"{where}: found an expression nested too deeply; {_ALLOWED}") from error
        return cls(source, tuple(dict.fromkeys(names)), tree)

    def evaluate(self, features: Mapping[str, FeatureValue]) -> float | int:
        """The expression's value; whole numbers are returned as ``int``.

        :raises KeyError: a feature is missing.
        :raises ValueError: a feature is text, or the value is not finite (division by zero included).
        """
        try:
            value = _evaluate(self._tree, features, _FUNCTIONS)
            if not math.isfinite(value):
                raise ValueError(f"{self.source} is not finite")
        except (ZeroDivisionError, OverflowError) as error:
            raise ValueError(f"{self.source}: {error}") from error
        return int(value) if float(value).is_integer() else value

    def of_columns(self, columns: Mapping[str, Floats]) -> Floats:
        """``(n,)`` the values for columns of numbers; NaN where they are not finite.

        :raises KeyError: a column is missing.
        """
        nothing = np.full_like(columns[self.names[0]], np.nan)
        try:
            with np.errstate(all="ignore"):
                values = _evaluate(self._tree, columns, _OF_COLUMNS)
        except (ZeroDivisionError, OverflowError):  # of its constants
            return nothing
        return np.where(np.isfinite(values), values, nothing)


def _check(node: ast.expr, names: list[str], source: str, where: str) -> None:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return
        case ast.Name(id=name):
            names.append(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check(left, names, source, where)
            _check(right, names, source, where)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            _check(operand, names, source, where)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            if name == "round" and len(args) > 1:
                raise InputError(f"{where}: found round() with {len(args)} arguments in {source!r}; expected one")
            if name != "round" and len(args) < 2:
                raise InputError(f"{where}: found {name}() with one argument in {source!r}; expected two or more")
            for arg in args:
                _check(arg, names, source, where)
        case _:
            found = ast.unparse(node)
            raise InputError(f"{where}: found {found!r} in {source!r}; {_ALLOWED}")


def _evaluate(node: ast.expr, features: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            found = features[name]
            if isinstance(found, str):
                raise ValueError(f"feature {name} is text ({found!r}), not a number")
            return found
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate(left, features, functions), _evaluate(right, features, functions))
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, features, functions)
            return -value if isinstance(op, ast.USub) else value
        case ast.Call(func=ast.Name(id=name), args=args):
            return functions[name](*(_evaluate(arg, features, functions) for arg in args))
    raise AssertionError(f"unchecked expression node {ast.dump(node)}")
