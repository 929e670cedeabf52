"""How much of a model's answers says the same as those of the original to the same requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from latfix.config.model_output_rules import ALL, OutputRule, rule_of
from latfix.errors import InputError
from latfix.runners.answers.named_outputs import Answer, Answers, Array
from latfix.runners.answers.output_distance import Apart, Floats, Measure, apart, measure_of
from latfix.runners.answers.output_kinds import kind_of

#: Sizes of one request's inputs, input by input.
Shapes = Sequence[tuple[int, ...]]
#: Answers that kinds are told from.
_LOOKED_AT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What answers are judged by: found once, in the original's, and used for all others.

    :param measures: by output.
    :param told: what told the kind of each output.
    :param follows: of an output the dimensions that are as long as an input of the request makes them. What is longer
        in a batch is the padding's part, and is cut.
    """

    measures: Mapping[str, Measure]
    told: Mapping[str, str] = field(default_factory=dict)
    follows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def measure(self, name: str, values: Array) -> Measure:
        """How an output is judged; one that no answer had so far, by itself."""
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
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How an answer differs from the reference.

    :param agreement: of the output that agrees least.
    :param distance: the largest one, in its kind's own measure; ``None`` without numbers.
    :param output: the name of the output that agrees least, or lies farthest.
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

    :param agreements: ``(n,)`` of the answers of the first list that are not failures.
    :param deviation: the largest distance in any answer; ``None`` where there are no numbers to compare.
    :param broken: answers that failed in the second list alone, or hold NaN or infinity where the first has numbers.
    :param same: all differ by no more than the original's own answers do.
    """

    agreements: Floats
    deviation: float | None
    broken: int
    same: bool

    @property
    def agreement(self) -> float:
        """The mean; 0 where nothing was compared."""
        return float(self.agreements.mean()) if len(self.agreements) else 0.0


def yardstick_of(
    answers: Answers, rules: Mapping[str, OutputRule], shapes: Sequence[Shapes | None] = ()
) -> Yardstick:
    """What to judge by, from the original's answers to requests alone.

    :param rules: what ``[outputs]`` declares.
    :param shapes: of the inputs of the first requests; ``None`` where unknown.
    :raises InputError: a rule is of an output that no answer has.
    """
    known = [answer for answer in answers if answer is not None]
    names = list(dict.fromkeys(output.name for answer in known for output in answer))
    _check_names(names, rules)
    measures, told = {}, {}
    for name in names:
        values = [output.values for answer in known for output in answer if output.name == name][:_LOOKED_AT]
        declared = rule_of(rules, name)
        kind, told[name] = (declared.kind, "declared") if declared.kind is not None else kind_of(name, values)
        measures[name] = measure_of(kind, values)
    return Yardstick(measures=measures, told=told, follows=following_axes(answers, shapes))


def _check_names(names: Sequence[str], rules: Mapping[str, OutputRule]) -> None:
    for name, rule in rules.items():
        if name not in (*names, ALL) and names:
            found = ", ".join(repr(each) for each in names if each) or "one output without a name: kind = ... for all"
            raise InputError(f"{rule.where}: found output {name!r}; the service answers {found}")


def following_axes(answers: Answers, shapes: Sequence[Shapes | None]) -> dict[str, tuple[int, ...]]:
    """Of each output the dimensions whose size follows from that of a dimension of an input.

    That is: it differs between requests, and is no smaller where the input's is larger. Of a number of boxes, or of
    written tokens, it cannot be said.
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
    by_input: dict[int, int] = {}
    if any(by_input.setdefault(own, size) != size for own, size in zip(given, sizes, strict=True)):
        return False
    rising = [by_input[own] for own in sorted(by_input)]
    return rising == sorted(rising)


def compare(yardstick: Yardstick, expected: Answer, got: Answer | None) -> Compared:
    """One answer beside the reference; ``None`` is a failure."""
    if got is None:
        return Compared(agreement=0.0, broken=True)
    if [output.name for output in expected] != [output.name for output in got]:
        return Compared(agreement=0.0)
    found: dict[str, Apart] = {}
    for wanted, given in zip(expected, got, strict=True):
        measure = yardstick.measure(wanted.name, wanted.values)
        own = _cut(given.values, wanted.values.shape, yardstick.follows.get(wanted.name, ()))
        here = apart(measure, wanted.values, own)
        found[wanted.name] = _worse(found[wanted.name], here) if wanted.name in found else here
    if not found:
        return Compared(agreement=1.0, same=True)
    # Where several are equally bad, the one that is farther off says more.
    name = min(found, key=lambda each: (found[each].agreement, -(found[each].distance or 0.0)))
    known = [each.distance for each in found.values() if each.distance is not None]
    return Compared(
        agreement=found[name].agreement,
        distance=max(known, default=None),
        output=name,
        broken=any(each.broken for each in found.values()),
        same=all(each.same for each in found.values()),
        apart=found,
    )


def _worse(one: Apart, other: Apart) -> Apart:
    far = [each.distance for each in (one, other) if each.distance is not None]
    return Apart(
        min(one.agreement, other.agreement),
        max(far, default=None),
        one.broken or other.broken,
        one.same and other.same,
    )


def _cut(values: Array, shape: tuple[int, ...], axes: Sequence[int]) -> Array:
    """Without what padding added at the ends of ``axes``."""
    if values.ndim != len(shape):
        return values
    return values[tuple(slice(size) if axis in axes else slice(None) for axis, size in enumerate(shape))]


def difference(yardstick: Yardstick, first: Answers, second: Answers) -> Difference:
    """Compare answers in the same order; what failed in the first list is left out.

    :raises ValueError: the lists are not of one length.
    """
    # A request that the original itself fails says nothing about a fix.
    judged = [compare(yardstick, a, b) for a, b in zip(first, second, strict=True) if a is not None]
    known = [each.distance for each in judged if each.distance is not None and math.isfinite(each.distance)]
    return Difference(
        agreements=np.array([each.agreement for each in judged], dtype=np.float64),
        deviation=max(known, default=None),
        broken=sum(each.broken for each in judged),
        same=all(each.same for each in judged),
    )
