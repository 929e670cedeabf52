"""Agreement of a model's answers with those of the original to the same requests."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from latfix.arrays import Floats
from latfix.config.model_output_rules import ALL, OutputRule, rule_of
from latfix.errors import InputError
from latfix.runners.answers.distance_bounds import Apart, Measure, apart, measure_of
from latfix.runners.answers.named_outputs import Answer, Answers, Array, says_nothing
from latfix.runners.answers.output_kinds import kind_of

#: Sizes of one request's inputs, input by input.
Shapes = Sequence[tuple[int, ...]]
#: Number of answers from which kinds are inferred.
_INFERRED_FROM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """How answers are judged: determined once from the original's answers, and used for all others.

    :param measures: by output.
    :param told: by output, the reason for its kind.
    :param follows: by output, the dimensions whose size follows from an input of the request. In a batch they may be
        longer by padding, which is cut.
    :param ignored: outputs that are declared to say nothing about an answer.
    """

    measures: Mapping[str, Measure]
    told: Mapping[str, str] = field(default_factory=dict)
    follows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def judged(self, answer: Answer) -> Answer:
        """The outputs of an answer that are compared."""
        return [output for output in answer if output.name not in self.ignored]

    def measure(self, name: str, values: Array) -> Measure:
        """How an output is judged; one that no answer of the original has, by its own values."""
        return self.measures.get(name) or measure_of(kind_of(name, [values])[0], [values])

    @property
    def kinds(self) -> str:
        """The kinds of all outputs, each once: ``ids, scores``."""
        return ", ".join(sorted({measure.kind for measure in self.measures.values()}))

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file of the original's answers."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Yardstick:
        """Read what :meth:`to_json` wrote."""
        return cls(
            measures={name: Measure(**measure) for name, measure in found["measures"].items()},
            told=found["told"],
            follows={name: tuple(axes) for name, axes in found["follows"].items()},
            ignored=tuple(found.get("ignored", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How an answer differs from the reference.

    :param agreement: of the output that agrees least.
    :param distance: the largest one, in the measure of its kind; ``None`` without numbers.
    :param output: name of the output that agrees least, or has the largest distance.
    :param apart: by output.
    """

    agreement: float
    distance: float | None = None
    output: str = ""
    broken: bool = False
    same: bool = False
    apart: Mapping[str, Apart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How two lists of answers differ.

    :param agreements: ``(n,)``, of the answers that did not fail in the first list.
    :param deviation: the largest distance of any answer; ``None`` if there are no numbers to compare.
    :param broken: number of answers that failed only in the second list, or have NaN or infinity in place of numbers.
    :param same: all differ by no more than the original's own answers do; false if nothing was compared.
    """

    agreements: Floats
    deviation: float | None
    broken: int
    same: bool

    @property
    def agreement(self) -> float:
        """The mean; 0 if nothing was compared."""
        return float(self.agreements.mean()) if len(self.agreements) else 0.0


def yardstick_of(
    answers: Answers, rules: Mapping[str, OutputRule], shapes: Sequence[Shapes | None] = ()
) -> Yardstick:
    """How to judge answers, from the original's answers to requests alone.

    :param rules: declared in ``[outputs]``.
    :param shapes: of the inputs of the first requests; ``None`` if unknown.
    :raises InputError: a rule names an output that no answer has.
    """
    known = [answer for answer in answers if answer is not None]
    names = list(dict.fromkeys(output.name for answer in known for output in answer))
    for name, rule in rules.items():
        if name not in (*names, ALL) and names:
            found = ", ".join(repr(each) for each in names if each) or "one output without a name: kind = ... for all"
            raise InputError(f"{rule.where}: found output {name!r}; the service answers {found}")
    measures, told = {}, {}
    ignored = tuple(name for name in names if rule_of(rules, name).kind == "ignored")
    for name in names:
        values = [output.values for answer in known for output in answer if output.name == name][:_INFERRED_FROM]
        if name in ignored or all(map(says_nothing, values)):
            continue
        declared = rule_of(rules, name)
        kind, told[name] = (declared.kind, "declared") if declared.kind is not None else kind_of(name, values)
        measures[name] = measure_of(kind, values)
    return Yardstick(measures=measures, told=told, follows=following_axes(answers, shapes), ignored=ignored)


def following_axes(answers: Answers, shapes: Sequence[Shapes | None]) -> dict[str, tuple[int, ...]]:
    """By output, the dimensions whose size follows from the size of an input's dimension.

    That is: it differs between requests, and never shrinks as the input's grows. The number of detected boxes, or of
    generated tokens, does not follow.
    """
    sized: dict[str, list[tuple[tuple[int, ...], Shapes]]] = {}
    for answer, inputs in zip(answers, shapes, strict=False):
        if answer is None or inputs is None:
            continue
        for output in answer:
            sized.setdefault(output.name, []).append((output.values.shape, inputs))
    found = {}
    for name, pairs in sized.items():
        if len({len(shape) for shape, _ in pairs}) > 1:
            continue
        axes = tuple(axis for axis in range(len(pairs[0][0])) if _follows(axis, pairs))
        if axes:
            found[name] = axes
    return found


def _follows(axis: int, pairs: Sequence[tuple[tuple[int, ...], Shapes]]) -> bool:
    sizes = [shape[axis] for shape, _ in pairs]
    if len(set(sizes)) < 2:
        return False
    places = [(k, d) for k, shape in enumerate(pairs[0][1]) for d in range(len(shape))]
    return any(_rises_with(sizes, [_size(inputs, *place) for _, inputs in pairs]) for place in places)


def _size(inputs: Shapes, place: int, dimension: int) -> int:
    return inputs[place][dimension] if place < len(inputs) and dimension < len(inputs[place]) else -1


def _rises_with(sizes: Sequence[int], given: Sequence[int]) -> bool:
    pairs = sorted(set(zip(given, sizes, strict=True)))
    rising = [size for _, size in pairs]
    return len(pairs) == len(set(given)) and rising == sorted(rising)


def compare(yardstick: Yardstick, expected: Answer, got: Answer | None) -> Compared:
    """Compare one answer with the reference; ``None`` is a failure."""
    if got is None:
        return Compared(agreement=0.0, broken=True)
    expected, got = yardstick.judged(expected), yardstick.judged(got)
    if [output.name for output in expected] != [output.name for output in got]:
        return Compared(agreement=0.0)
    parts: dict[str, list[Apart]] = {}
    for wanted, given in zip(expected, got, strict=True):
        measure = yardstick.measure(wanted.name, wanted.values)
        own = _cut(given.values, wanted.values.shape, yardstick.follows.get(wanted.name, ()))
        parts.setdefault(wanted.name, []).append(apart(measure, wanted.values, own))
    if not parts:
        return Compared(agreement=1.0, same=True)
    found = {name: _worst(each) for name, each in parts.items()}
    whole = _worst(found.values())
    # Among outputs with equal agreement, report the one with the largest distance.
    name = min(found, key=lambda each: (found[each].agreement, -(found[each].distance or 0.0)))
    return Compared(
        agreement=whole.agreement,
        distance=whole.distance,
        output=name,
        broken=whole.broken,
        same=whole.same,
        apart=found,
    )


def _worst(parts: Collection[Apart]) -> Apart:
    """The least agreement and the largest distance of several outputs."""
    return Apart(
        min(each.agreement for each in parts),
        max((each.distance for each in parts if each.distance is not None), default=None),
        any(each.broken for each in parts),
        all(each.same for each in parts),
    )


def _cut(values: Array, shape: tuple[int, ...], axes: Sequence[int]) -> Array:
    """The values without padding at the ends of ``axes``."""
    if values.ndim != len(shape):
        return values
    return values[tuple(slice(size) if axis in axes else slice(None) for axis, size in enumerate(shape))]


def difference(yardstick: Yardstick, first: Answers, second: Answers) -> Difference:
    """Compare answers in the same order, without the requests that failed in the first list.

    :raises ValueError: the lists differ in length.
    """
    judged = [compare(yardstick, a, b) for a, b in zip(first, second, strict=True) if a is not None]
    known = [each.distance for each in judged if each.distance is not None and math.isfinite(each.distance)]
    return Difference(
        agreements=np.array([each.agreement for each in judged], dtype=np.float64),
        deviation=max(known, default=None),
        broken=sum(each.broken for each in judged),
        same=bool(judged) and all(each.same for each in judged),
    )
