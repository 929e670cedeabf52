"""How a service's own answers vary: alone, in the service's batches, on another number of threads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Floats
from latfix.config.model_output_rules import OutputRule
from latfix.results.answer_check import AnswerCheck, JudgedOutput, OddAnswer
from latfix.runners.answers.agreement import Compared, Shapes, Yardstick, compare, yardstick_of
from latfix.runners.answers.named_outputs import Answers, says_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAnswers:
    """A service's own answers, judged.

    :param agreements: ``(n,)`` of its answers in batches with those alone, by request; 1 for a request that failed
        alone.
    :param shared_s: seconds that the answers in batches took, or those alone if there are no batches.
    """

    yardstick: Yardstick
    check: AnswerCheck
    agreements: Floats
    shared_s: float = 0.0


def own_variation(
    ids: Sequence[str],
    alone: Answers,
    batched: Answers,
    threaded: Answers,
    rules: Mapping[str, OutputRule],
    shapes: Sequence[Shapes | None] = (),
    repeated: Answers = (),
) -> OwnAnswers:
    """Compare a service's answers in batches, on another number of threads, and repeated, with those to each request
    alone.

    :param ids: of the requests.
    :param batched: answers to the first requests in the service's own batches; empty if it has none.
    :param threaded: answers to the first requests alone, on another number of threads.
    :param rules: declared in ``[outputs]``.
    :param shapes: of the inputs of the first requests.
    :param repeated: answers to the first requests alone, a second time.
    :raises InputError: a rule names an output that no answer has.
    """
    first = yardstick_of(alone, rules, shapes)
    shared, apart = _compared(first, alone, batched), _compared(first, alone, threaded)
    yardstick = _with_variation(first, shared.values(), apart.values())
    shared = _compared(yardstick, alone, batched)
    odd, unrepeatable = _odd(shared), _odd(_compared(yardstick, alone, repeated))
    agreements = np.ones(len(alone))
    agreements[list(shared)] = [each.agreement for each in shared.values()]
    known = {tuple(map(tuple, each)) for each in shapes if each is not None}
    return OwnAnswers(
        yardstick=yardstick,
        agreements=agreements,
        check=AnswerCheck(
            outputs=_outputs(yardstick, _uncut(yardstick, alone, batched)),
            compared=len(shared),
            differing=len(odd),
            padded=len(known) > 1,
            example=_example(ids, unrepeatable or odd),
            repeated=len(repeated),
            unrepeatable=len(unrepeatable),
            empty=sum(
                answer is not None and all(says_nothing(each.values) for each in yardstick.judged(answer))
                for answer in alone
            ),
        ),
    )


def differ(yardstick: Yardstick, one: Answers, other: Answers) -> bool:
    """True if the answers to any request differ beyond the bound."""
    return bool(_odd(_compared(yardstick, one, other)))


def _compared(yardstick: Yardstick, alone: Answers, other: Answers) -> dict[int, Compared]:
    """By position of the request; requests that failed alone are left out."""
    pairs = enumerate(zip(alone, other, strict=False))
    return {k: compare(yardstick, one, two) for k, (one, two) in pairs if one is not None}


def _odd(compared: Mapping[int, Compared]) -> dict[int, Compared]:
    return {k: each for k, each in compared.items() if each.agreement < 1.0}


def _with_variation(yardstick: Yardstick, shared: Iterable[Compared], apart: Iterable[Compared]) -> Yardstick:
    """With the variation of each output; a batch that changes an answer is a fault, not noise, and does not count."""
    shared, apart = list(shared), list(apart)
    measures = {}
    for name, measure in yardstick.measures.items():
        batches = [each.apart[name] for each in shared if name in each.apart]
        threads = [each.apart[name] for each in apart if name in each.apart]
        faulty = any(each.agreement < 1.0 for each in batches)
        noise = [
            each.distance
            for each in (threads if faulty else [*batches, *threads])
            if each.distance is not None and math.isfinite(each.distance) and each.distance <= measure.bound
        ]
        measures[name] = replace(measure, varies=max(noise, default=0.0))
    return replace(yardstick, measures=measures)


def _uncut(yardstick: Yardstick, alone: Answers, batched: Answers) -> dict[str, set[int]]:
    """By output, the dimensions in which the padding of a batch came back with an answer."""
    found: dict[str, set[int]] = {}
    for one, two in zip(alone, batched, strict=False):
        for own, given in zip(one or (), two or (), strict=False):
            if own.name == given.name and own.values.ndim == given.values.ndim:
                longer = np.greater(given.values.shape, own.values.shape)
                axes = (axis for axis in yardstick.follows.get(own.name, ()) if longer[axis])
                found.setdefault(own.name, set()).update(axes)
    return found


def _outputs(yardstick: Yardstick, uncut: Mapping[str, set[int]]) -> tuple[JudgedOutput, ...]:
    return tuple(
        JudgedOutput(
            name=name,
            kind=measure.kind,
            told=yardstick.told[name],
            bound=measure.bound,
            varies=measure.varies,
            follows=yardstick.follows.get(name, ()),
            uncut=tuple(sorted(uncut.get(name, ()))),
        )
        for name, measure in yardstick.measures.items()
    )


def _example(ids: Sequence[str], odd: Mapping[int, Compared]) -> OddAnswer | None:
    if not odd:
        return None
    place = min(odd, key=lambda k: (odd[k].agreement, -(odd[k].distance or 0.0), k))
    worst = odd[place]
    here = worst.apart.get(worst.output)
    return OddAnswer(
        request=ids[place],
        output=worst.output,
        agreement=worst.agreement,
        deviation=None if here is None else here.distance,
    )
