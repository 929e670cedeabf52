"""From a model's signature and ``[inputs]`` to what has to be known of every input: its batch dimension, the sizes
of the others, its type and its values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from latfix.config.model_input_rules import BATCH, FLOATS, WHOLE, InputRule, is_batch
from latfix.errors import InputError, input_error
from latfix.runners.model_files.opened_model import Axis, OpenedModel, TensorInput
from latfix.traffic.feature_expressions import Expression

_BATCH_NAME = re.compile(r"(batch|batch_?size|bs|b|n)", re.IGNORECASE)
#: Names of dimensions and features that are lengths of something.
LENGTH_NAME = re.compile(r"len|tok|seq|size|time|frame|step|word|char|item|sample|count|width|height", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One dimension of an input of one request.

    :param fixed: its size, where that never changes.
    :param symbol: dimensions of one symbol are equally long; an expression where ``derived`` is set.
    :param derived: gives the size from other symbols.
    :param least: the smallest size that the model takes.
    :param most: the largest; ``None`` for no limit.
    """

    fixed: int | None = None
    symbol: str = ""
    derived: Expression | None = None
    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """One input of a model, as a request brings it.

    :param dtype: as torch names it; ``None`` where only the payload tells.
    :param sizes: its dimensions without the batch's; ``None`` where only the payload tells.
    :param batch_axis: where the batch's dimension goes; ``None`` where it has none.
    :param rows: of the table that its values look up, where known.
    :param low: values are drawn evenly from here; ``None`` for the default of its kind.
    :param high: values are drawn evenly below it.
    :param pad: fills what is added where inputs of one batch differ in size.
    """

    name: str
    dtype: str | None
    sizes: tuple[Size, ...] | None
    batch_axis: int | None
    rows: int | None = None
    low: float | None = None
    high: float | None = None
    pad: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All inputs of a model.

    :param expressions: of symbols that ``[inputs]`` gives, over a request's features.
    :param fixed_batch: requests that a call takes, where the file fixes it; 0 where it does not.
    :param least_batch: the fewest that a call takes, where the file states a limit; a smaller batch is filled up.
    :param most_batch: the most, where the file states a limit; 0 where it does not.
    """

    file: Path
    inputs: tuple[InputLayout, ...]
    expressions: Mapping[str, Expression]
    fixed_batch: int = 0
    least_batch: int = 0
    most_batch: int = 0

    @property
    def largest_batch(self) -> int | None:
        """Most requests in one call; ``None`` for any number."""
        if any(given.batch_axis is None for given in self.inputs):
            return 1
        return self.fixed_batch or self.most_batch or None

    def symbols(self) -> dict[str, list[Size]]:
        """Variable dimensions by symbol, without those that follow from others."""
        found: dict[str, list[Size]] = {}
        for given in self.inputs:
            for size in given.sizes or ():
                if size.fixed is None and size.derived is None:
                    found.setdefault(size.symbol, []).append(size)
        return found


def lay_out(model: OpenedModel, rules: Mapping[str, InputRule]) -> Layout:
    """What every input of a model is made of.

    :raises InputError: ``[inputs]`` contradicts the file, or neither says which dimension is the batch's.
    """
    names = [given.name for given in model.inputs]
    for name, rule in rules.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            advice = f"did you mean {near[0]!r}?" if near else "remove it"
            expected = f"one of {model.file.name}'s: {', '.join(names)}"
            raise InputError(f"{rule.where}: found input {name!r}; expected {expected}; {advice}")
    axes = {given.name: _checked_axes(given, rules.get(given.name), model.file) for given in model.inputs}
    expressions: dict[str, Expression] = {}
    declared: set[str] = set()
    for name, each in rules.items():
        known = axes[name]
        if known is not None and each.shape is not None:
            _collect(expressions, declared, known, each, name)
    batch = {given.name: _batch_axis(given, rules.get(given.name), model, declared) for given in model.inputs}
    _check_batch_symbols(model, axes, batch, expressions)
    plain = {axis.symbol for known in axes.values() for axis in known or () if axis.size is None}
    inputs = []
    for given in model.inputs:
        known, rule, at = axes[given.name], rules.get(given.name, InputRule()), batch[given.name]
        dtype = _dtype(given, rule, model.file)
        check_values(given.name, dtype, given.rows, rule)
        inputs.append(
            InputLayout(
                name=given.name,
                dtype=dtype,
                sizes=None
                if known is None
                else tuple(_size(axis, plain, expressions) for k, axis in enumerate(known) if k != at),
                batch_axis=at,
                rows=given.rows,
                low=rule.low,
                high=rule.high,
                pad=rule.pad,
            )
        )
    limits = [known[at] for name, at in batch.items() if at is not None and (known := axes[name]) is not None]
    varying = [axis for axis in limits if axis.size is None]
    return Layout(
        file=model.file,
        inputs=tuple(inputs),
        expressions=expressions,
        fixed_batch=_fixed_batch([(axes[name], at) for name, at in batch.items()], model.file),
        least_batch=max((axis.least for axis in varying if axis.least > 1), default=0),
        most_batch=min((axis.most for axis in varying if axis.most is not None), default=0),
    )


def _dtype(given: TensorInput, rule: InputRule, file: Path) -> str | None:
    if given.dtype is not None and rule.dtype is not None and given.dtype != rule.dtype:
        raise InputError(f"{rule.where}: found {given.name} of {rule.dtype}; {file.name} takes {given.dtype}")
    return given.dtype or rule.dtype


def _checked_axes(given: TensorInput, rule: InputRule | None, file: Path) -> tuple[Axis, ...] | None:
    """Dimensions by the file, or by ``[inputs]`` where the file does not say, once they agree."""
    shape = rule.shape if rule is not None else None
    if shape is None or rule is None:
        return given.axes
    if given.axes is None:
        return tuple(
            Axis(symbol=f"{given.name}[{k}]") if isinstance(size, Expression) else Axis(size=size)
            for k, size in enumerate(shape)
        )
    if len(shape) != len(given.axes):
        raise InputError(
            f"{rule.where}: found {given.name} with {len(shape)} dimensions; {file.name} takes {len(given.axes)}: "
            f"{shown(given.axes)}"
        )
    merged = []
    for k, (size, axis) in enumerate(zip(shape, given.axes, strict=True)):
        if isinstance(size, Expression):
            if axis.size is not None and not is_batch(size):
                raise InputError(
                    f"{rule.where}: found {size.source!r} for dimension {k} of {given.name}; "
                    f"{file.name} fixes it at {axis.size}"
                )
            merged.append(axis)
            continue
        most = axis.most if axis.size is None else axis.size
        least = axis.least if axis.size is None else axis.size
        if size < least or (most is not None and size > most):
            limits = f"{least}" if least == most else f"{least} to {'any' if most is None else most}"
            raise InputError(
                f"{rule.where}: found {size} for dimension {k} of {given.name}; {file.name} takes {limits}"
            )
        merged.append(axis)
    return tuple(merged)


def _collect(
    expressions: dict[str, Expression], batches: set[str], axes: Sequence[Axis], rule: InputRule, name: str
) -> None:
    """What a rule gives to the symbols of an input's dimensions: expressions, or to be the batch's."""
    for axis, size in zip(axes, rule.shape or (), strict=True):
        if axis.size is not None:
            continue
        if is_batch(size):
            batches.add(axis.symbol)
            continue
        given = size if isinstance(size, Expression) else Expression.parse(str(size), rule.where)
        earlier = expressions.setdefault(axis.symbol, given)
        if earlier.source != given.source:
            raise InputError(
                f"{rule.where}: found {given.source!r} in {name} for a dimension that is as long as one of another "
                f"input, which is {earlier.source!r}; expected the same"
            )


def _check_batch_symbols(
    model: OpenedModel,
    axes: Mapping[str, Sequence[Axis] | None],
    batch: Mapping[str, int | None],
    expressions: Mapping[str, Expression],
) -> None:
    """See that no dimension is the batch's in one input and a part of every request in another."""
    for name, at in batch.items():
        known = axes[name]
        if known is None or at is None or known[at].size is not None or known[at].symbol not in expressions:
            continue
        found = expressions[known[at].symbol].source
        raise InputError(
            f"{model.file}: found {found!r} in [inputs] for a dimension that is as long as dimension {at} of {name}, "
            f'the batch; expected "{BATCH}" in both, or sizes in both'
        )


def check_values(name: str, dtype: str | None, rows: int | None, rule: InputRule) -> None:
    """See that an input can hold the values that a rule asks for.

    :param rows: of the table that they look up, where known.
    :raises InputError: it cannot.
    """
    if rule.high is None or dtype is None or dtype in FLOATS:
        return
    low = rule.low or 0.0
    if not (low.is_integer() and rule.high.is_integer()):
        raise InputError(
            f"{rule.where}: found {name} with low = {low:g} and high = {rule.high:g}; {dtype} takes whole numbers"
        )
    least, most = WHOLE[dtype]
    if rows is not None:
        least, most = max(least, 0), min(most, rows)
    if low < least or rule.high > most:
        why = f"they look up a table of {rows} rows" if rows is not None and most == rows else f"it is {dtype}"
        raise InputError(
            f"{rule.where}: found {name} with values from {low:.0f} to below {rule.high:.0f}; {why}: expected "
            f"low = {least} or more and high = {most} or less"
        )


def _size(axis: Axis, symbols: set[str], expressions: Mapping[str, Expression]) -> Size:
    if axis.size is not None:
        return Size(fixed=axis.size)
    given = expressions.get(axis.symbol)
    if given is not None and given.source.isdecimal() and not _is_used(axis.symbol, symbols):
        return Size(fixed=int(given.source))
    derived = None if given is not None else _derived(axis.symbol, symbols)
    return Size(symbol=axis.symbol, derived=derived, least=axis.least, most=axis.most)


def _is_used(symbol: str, symbols: set[str]) -> bool:
    """Whether another dimension follows from a symbol's size."""
    others = (_derived(other, symbols) for other in symbols)
    return any(derived is not None and symbol in derived.names for derived in others)


def _derived(symbol: str, symbols: set[str]) -> Expression | None:
    """The symbol as an expression over others, as in ``2*s0`` or ``past + 1``; ``None`` for a plain name."""
    if symbol.isidentifier():
        return None
    try:
        expression = Expression.parse(symbol, symbol)
    except InputError:
        return None  # any text may name a dimension
    return expression if expression.names and set(expression.names) <= symbols else None


def _batch_axis(given: TensorInput, rule: InputRule | None, model: OpenedModel, declared: set[str]) -> int | None:
    """Which dimension of an input is the batch's: by ``[inputs]``, by its name, or the first one if that varies.

    :param declared: symbols of dimensions that ``[inputs]`` calls the batch's, in whichever input.
    """
    if rule is not None and rule.shape is not None:
        return next((k for k, size in enumerate(rule.shape) if is_batch(size)), None)
    if given.axes is None:
        return 0  # what the payload brings is one request's
    if not given.axes:
        return None
    for k, axis in enumerate(given.axes):
        if axis.size is None and axis.symbol in declared:
            return k
    for k, axis in enumerate(given.axes):
        if axis.size is None and _BATCH_NAME.fullmatch(axis.symbol):
            return k
    first = given.axes[0]
    if first.size is None:
        return None if first.symbol.isidentifier() and LENGTH_NAME.search(first.symbol) else 0
    if _some_batch_varies(model):
        return None  # others have a batch dimension; this one is the same for all of them
    if first.size == 1 and len(given.axes) > 1:
        return 0
    sizes = ", ".join(str(axis.size) if axis.size is not None else f'"{axis.symbol}"' for axis in given.axes[1:])
    rest = f", {sizes}" if sizes else ""
    raise input_error(
        model.file,
        None,
        f"{given.name} of {shown(given.axes)}, whose first dimension may be the batch or a part of every request",
        "one of them in [inputs] of workload.toml",
        f'write {given.name} = {{ shape = ["{BATCH}"{rest}] }} or {given.name} = {{ shape = [{first.size}{rest}] }}',
    )


def _some_batch_varies(model: OpenedModel) -> bool:
    return any(given.axes and given.axes[0].size is None for given in model.inputs)


def _fixed_batch(axes: Sequence[tuple[tuple[Axis, ...] | None, int | None]], file: Path) -> int:
    sizes = {
        size for known, at in axes if known is not None and at is not None and (size := known[at].size) is not None
    }
    if len(sizes) > 1:
        raise input_error(file, None, f"batch dimensions of {' and '.join(map(str, sorted(sizes)))}", "one size")
    return sizes.pop() if sizes else 0


def shown(axes: Sequence[Axis]) -> str:
    """A shape as people read it: ``(batch, length, 64)``."""
    return f"({', '.join(axis.symbol if axis.size is None else str(axis.size) for axis in axes)})"
