"""The layout of a model's inputs, from its signature and ``[inputs]``: batch dimension, other sizes, type, values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from latfix.config.model_input_rules import BATCH, FLOATS, WHOLE, InputRule, is_batch
from latfix.errors import InputError, input_error
from latfix.files.toml_writer import toml_key
from latfix.formatting import did_you_mean
from latfix.runners.model_files.opened_model import Axis, OpenedModel, TensorInput
from latfix.traffic.feature_expressions import Expression

_BATCH_NAME = re.compile(r"[\w .-]*batch[\w .-]*|bs|b|n", re.IGNORECASE)
#: A boolean mask with such a name is true for padding; others are false for padding.
_PADDING_MASK = re.compile(r"pad\w*mask|mask\w*pad", re.IGNORECASE)
#: Names of dimensions and features that are lengths.
LENGTH_NAME = re.compile(r"len|tok|seq|size|time|frame|step|word|char|item|sample|count|width|height", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """One input of a model, for one request.

    :param dtype: torch's name; ``None`` if only the payload determines it.
    :param axes: its dimensions without the batch; ``None`` if only the payload determines them.
    :param batch_axis: position of the batch dimension; ``None`` if it has none.
    :param rows: rows of the table that its values index, if known.
    :param low: lower end of a uniform distribution of values; ``None`` for the default of its kind.
    :param high: upper end, excluded.
    :param pad: fill value where inputs of one batch differ in size.
    """

    name: str
    dtype: str | None
    axes: tuple[Axis, ...] | None
    batch_axis: int | None
    rows: int | None = None
    low: float | None = None
    high: float | None = None
    pad: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All inputs of a model.

    :param expressions: expressions over a request's features, by symbol, from ``[inputs]``.
    :param fixed_batch: batch size that the file fixes; 0 if it does not.
    :param least_batch: smallest batch size, if the file states one; smaller batches are filled up.
    :param most_batch: largest batch size; 0 if the file states none.
    """

    file: Path
    inputs: tuple[InputLayout, ...]
    expressions: Mapping[str, Expression]
    fixed_batch: int = 0
    least_batch: int = 0
    most_batch: int = 0

    @property
    def largest_batch(self) -> int | None:
        """Maximum batch size of one call; ``None`` for no limit."""
        if any(given.batch_axis is None for given in self.inputs):
            return 1
        return self.fixed_batch or self.most_batch or None

    def symbols(self) -> dict[str, list[Axis]]:
        """Variable dimensions by symbol, without derived ones."""
        found: dict[str, list[Axis]] = {}
        for given in self.inputs:
            for axis in given.axes or ():
                if axis.size is None and axis.derived is None:
                    found.setdefault(axis.symbol, []).append(axis)
        return found


def lay_out(model: OpenedModel, rules: Mapping[str, InputRule]) -> Layout:
    """The layout of a model's inputs.

    :raises InputError: ``[inputs]`` contradicts the file, or the batch dimension is ambiguous.
    """
    _check_names(model, rules)
    ruled = {given.name: rules.get(given.name, InputRule()) for given in model.inputs}
    axes = {given.name: _known_axes(given, ruled[given.name], model.file) for given in model.inputs}
    declared, expressions = _declared(axes, rules)
    batch = {given.name: _batch_axis(given, ruled[given.name], model, declared) for given in model.inputs}
    batch_axes = {
        name: known[at] for name, at in batch.items() if at is not None and (known := axes[name]) is not None
    }
    _check_batch_symbols(model.file, batch, batch_axes, expressions)
    symbols = {axis.symbol for known in axes.values() for axis in known or () if axis.size is None}
    varying = [axis for axis in batch_axes.values() if axis.size is None]
    return Layout(
        file=model.file,
        inputs=tuple(
            _input_layout(given, ruled[given.name], axes[given.name], batch[given.name], symbols, expressions, model)
            for given in model.inputs
        ),
        expressions=expressions,
        fixed_batch=_fixed_batch(batch_axes.values(), model.file),
        least_batch=max((axis.least for axis in varying if axis.least > 1), default=0),
        most_batch=min((axis.most for axis in varying if axis.most is not None), default=0),
    )


def _check_names(model: OpenedModel, rules: Mapping[str, InputRule]) -> None:
    names = [given.name for given in model.inputs]
    for name, rule in rules.items():
        if name not in names:
            advice = did_you_mean(name, names, "remove it")
            expected = f"one of {model.file.name}'s: {', '.join(names)}"
            raise InputError(f"{rule.where}: found input {name!r}; expected {expected}; {advice}")


def _input_layout(
    given: TensorInput,
    rule: InputRule,
    axes: tuple[Axis, ...] | None,
    batch_axis: int | None,
    symbols: set[str],
    expressions: Mapping[str, Expression],
    model: OpenedModel,
) -> InputLayout:
    if given.dtype is not None and rule.dtype is not None and given.dtype != rule.dtype:
        raise InputError(f"{rule.where}: found {given.name} of {rule.dtype}; {model.file.name} takes {given.dtype}")
    dtype = given.dtype or rule.dtype
    check_values(given.name, dtype, given.rows, rule)
    if axes is not None:
        axes = tuple(_resolved(axis, symbols, expressions) for k, axis in enumerate(axes) if k != batch_axis)
    return InputLayout(
        name=given.name,
        dtype=dtype,
        axes=axes,
        batch_axis=batch_axis,
        rows=given.rows,
        low=rule.low,
        high=rule.high,
        pad=float(marks_padding(given.name, dtype)) if rule.pad is None else rule.pad,
    )


def marks_padding(name: str, dtype: str | None) -> bool:
    """True if an input is a mask that is true for padding, as in torch's attention."""
    return dtype == "bool" and _PADDING_MASK.search(name) is not None


#: The input has no batch dimension.
_NONE = -1


def _decided(
    axes: tuple[Axis, ...] | None, rule: InputRule, declared: Collection[str], others_vary: bool
) -> int | None:
    """The batch dimension by the first rule that decides; :data:`_NONE` for no such dimension, ``None`` if undecided.

    :param declared: symbols that ``[inputs]`` declares as the batch, in any input.
    :param others_vary: the first dimension of some input of the model varies.
    """
    if rule.shape is not None:
        return next((k for k, size in enumerate(rule.shape) if is_batch(size)), _NONE)
    if axes is None:  # only the payload has dimensions, those of one request: tensors are stacked
        return 0
    if not axes:
        return _NONE
    varying = [(k, axis.symbol) for k, axis in enumerate(axes) if axis.size is None]
    as_another = [k for k, symbol in varying if symbol in declared]  # the batch of another input
    named = [k for k, symbol in varying if _BATCH_NAME.fullmatch(symbol)]  # in the file: batch_size, N
    if as_another or named:
        return (as_another or named)[0]
    first = axes[0]
    if first.size is None:  # the batch, unless it is named like a length
        return _NONE if first.symbol.isidentifier() and LENGTH_NAME.search(first.symbol) else 0
    if others_vary:  # other inputs have a batch dimension; this one is the same for every request
        return _NONE
    return 0 if len(axes) > 1 and first.size == 1 else None  # (1, 3, 224, 224): exported with a batch of one


def _batch_axis(given: TensorInput, rule: InputRule, model: OpenedModel, declared: Collection[str]) -> int | None:
    """The batch dimension of an input; ``None`` for none."""
    others_vary = any(other.axes and other.axes[0].size is None for other in model.inputs)
    found = _decided(given.axes, rule, declared, others_vary)
    if found is not None:
        return None if found == _NONE else found
    axes, name, key = given.axes or (), given.name, toml_key(given.name)
    rest = "".join(f", {axis.size}" if axis.size is not None else f', "{axis.symbol}"' for axis in axes[1:])
    raise input_error(
        model.file,
        None,
        f"{name} of shape {shown(axes)}, whose first dimension may be the batch or part of every request",
        "its meaning in [inputs] of workload.toml",
        f'write {key} = {{ shape = ["{BATCH}"{rest}] }} or {key} = {{ shape = [{axes[0].size}{rest}] }}',
    )


# [inputs] checked against the file.


def _known_axes(given: TensorInput, rule: InputRule, file: Path) -> tuple[Axis, ...] | None:
    """Dimensions by the file, or by ``[inputs]`` if the file states none."""
    if rule.shape is None:
        return given.axes
    if given.axes is None:
        return tuple(
            Axis(symbol=f"{given.name}[{k}]") if isinstance(size, Expression) else Axis(size=size)
            for k, size in enumerate(rule.shape)
        )
    if len(rule.shape) != len(given.axes):
        raise InputError(
            f"{rule.where}: found {given.name} with {len(rule.shape)} dimensions; {file.name} takes "
            f"{len(given.axes)}: {shown(given.axes)}"
        )
    for k, (size, axis) in enumerate(zip(rule.shape, given.axes, strict=True)):
        if wrong := _contradiction(size, axis):
            found, limit = wrong
            raise InputError(f"{rule.where}: found {found} for dimension {k} of {given.name}; {file.name} {limit}")
    return given.axes


def _contradiction(size: int | Expression, axis: Axis) -> tuple[str, str] | None:
    """A size in ``[inputs]`` that the file does not take, and the sizes that it takes; ``None`` if the size fits."""
    if isinstance(size, Expression):
        fixed = axis.size is not None and not is_batch(size)
        return (repr(size.source), f"fixes it at {axis.size}") if fixed else None
    limits = out_of_range(size, axis)
    return (str(size), f"takes {limits}") if limits else None


def out_of_range(found: int, axis: Axis) -> str:
    """The sizes that a dimension takes, if ``found`` is none of them; empty if it is."""
    least, most = (axis.least, axis.most) if axis.size is None else (axis.size, axis.size)
    if found >= least and (most is None or found <= most):
        return ""
    return str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"


def _declared(
    axes: Mapping[str, Sequence[Axis] | None], rules: Mapping[str, InputRule]
) -> tuple[set[str], dict[str, Expression]]:
    """The symbols that ``[inputs]`` declares as the batch, and the expressions of other symbols."""
    batches: set[str] = set()
    expressions: dict[str, Expression] = {}
    for name, rule in rules.items():
        for axis, size in zip(axes[name] or (), rule.shape or (), strict=False):
            if axis.size is not None:
                continue
            if is_batch(size):
                batches.add(axis.symbol)
                continue
            given = size if isinstance(size, Expression) else Expression.parse(str(size), rule.where)
            earlier = expressions.setdefault(axis.symbol, given)
            if earlier.source != given.source:
                raise InputError(
                    f"{rule.where}: found {given.source!r} in {name} for a dimension that is as long as one of "
                    f"another input, where it is {earlier.source!r}; expected the same in both"
                )
    return batches, expressions


def _check_batch_symbols(
    file: Path, batch: Mapping[str, int | None], axes: Mapping[str, Axis], expressions: Mapping[str, Expression]
) -> None:
    """Refuse a dimension that is the batch in one input and part of every request in another."""
    for name, axis in axes.items():
        if axis.size is None and axis.symbol in expressions:
            raise InputError(
                f"{file}: found {expressions[axis.symbol].source!r} in [inputs] for a dimension that is as long as "
                f'dimension {batch[name]} of {name}, the batch; expected "{BATCH}" in both, or sizes in both'
            )


def check_values(name: str, dtype: str | None, rows: int | None, rule: InputRule) -> None:
    """Check that an input can hold the values that a rule requests.

    :param rows: rows of the table that they index, if known.
    :raises InputError: it cannot.
    """
    if rule.high is None or dtype is None or dtype in FLOATS:
        return
    if dtype not in WHOLE:
        raise InputError(
            f"{rule.where}: found {name} with low and high, which latfix cannot draw as {dtype}; remove them, or "
            "give the values in the payload"
        )
    low = rule.low or 0.0
    if not (low.is_integer() and rule.high.is_integer()):
        raise InputError(
            f"{rule.where}: found {name} with low = {low:g} and high = {rule.high:g}; {dtype} takes whole numbers"
        )
    least, most = WHOLE[dtype]
    if rows is not None:
        least, most = max(least, 0), min(most, rows)
    if low < least or rule.high > most:
        why = f"they index a table of {rows} rows" if rows is not None and most == rows else f"it is {dtype}"
        raise InputError(
            f"{rule.where}: found {name} with values from {low:.0f} to below {rule.high:.0f}; {why}: expected "
            f"low = {least} or more and high = {most} or less"
        )


# The sizes of all other dimensions.


def _resolved(axis: Axis, symbols: set[str], expressions: Mapping[str, Expression]) -> Axis:
    given = expressions.get(axis.symbol)
    if axis.size is not None or given is None:
        return axis if axis.size is not None else replace(axis, derived=_derived(axis.symbol, symbols))
    fixed = given.source.isdecimal() and not _is_used(axis.symbol, symbols)
    return Axis(size=int(given.source)) if fixed else axis


def _is_used(symbol: str, symbols: set[str]) -> bool:
    """True if another dimension is derived from the symbol."""
    others = (_derived(other, symbols) for other in symbols)
    return any(derived is not None and symbol in derived.names for derived in others)


def _derived(symbol: str, symbols: set[str]) -> Expression | None:
    """The symbol as an expression over others, such as ``2*s0`` or ``past + 1``; ``None`` for a plain name."""
    if symbol.isidentifier():
        return None
    try:
        expression = Expression.parse(symbol, symbol)
    except InputError:
        return None  # any text may name a dimension
    return expression if expression.names and set(expression.names) <= symbols else None


def _fixed_batch(axes: Iterable[Axis], file: Path) -> int:
    sizes = {axis.size for axis in axes if axis.size is not None}
    if len(sizes) > 1:
        raise input_error(file, None, f"batch dimensions of {' and '.join(map(str, sorted(sizes)))}", "one size")
    return sizes.pop() if sizes else 0


def shown(axes: Sequence[Axis]) -> str:
    """A shape as text: ``(batch, length, 64)``."""
    return f"({', '.join(axis.symbol if axis.size is None else str(axis.size) for axis in axes)})"
