"""Throughput of backends, timed in turns in one process, and the comparison of their answers with the first one's."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from latfix.config.model_output_rules import OutputRule
from latfix.errors import RunnerError
from latfix.results.answer_check import AnswerCheck
from latfix.runners.answers.agreement import compare
from latfix.runners.answers.distance_bounds import deviation_of
from latfix.runners.answers.named_outputs import Answer, outputs_of
from latfix.runners.answers.own_variation import OwnAnswers, own_variation
from latfix.runners.backend_comparison.candidates import Candidate
from latfix.runners.calls.model_call import (
    USER_ERRORS,
    call_model,
    call_on_copy,
    describe,
    model_error,
    on_copy,
    split_output,
)
from latfix.runners.calls.tensor_tree import arrays_of, shapes_of
from latfix.statistics.decision import Interval
from latfix.statistics.score_bounds import between

#: Minimum number of rounds for an interval.
_FEWEST_ROUNDS = 5
_MOST_ROUNDS = 400
#: Untimed rounds of each backend. TorchScript profiles the first call of a shape and compiles in the second.
_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Work:
    """The work of each backend in a round.

    :param singles: requests as batches of one.
    :param batches: the same requests in batches.
    :param sizes: number of requests in each batch.
    :param ids: ids of the requests.
    :param names: names of the model's outputs, if a file states them.
    :param rules: declarations in ``[outputs]``.
    """

    singles: Sequence[Any]
    batches: Sequence[Any]
    sizes: Sequence[int]
    ids: Sequence[str] = ()
    names: Sequence[str] = ()
    rules: Mapping[str, OutputRule] = field(default_factory=dict)


@dataclass(slots=True)
class Served:
    """Times and answers of one backend.

    :param single_ns: duration of each round with single requests; ``batched_ns``: with batches.
    :param agreeing: number of answers, of ``compared``, that agree with the first backend's. Each request is answered
        alone and in a batch; both are compared with the first backend's answer to the request alone, unless its own
        answer in a batch differs, which is then the reference for batches.
    :param agreement: mean share of an answer that agrees.
    :param deviation: the largest difference of a number, as a share of the largest number in that answer, with each
        request alone or in the same batch.
    :param failure: why the backend was left out; empty if it was not.
    """

    single_ns: list[int] = field(default_factory=list)
    batched_ns: list[int] = field(default_factory=list)
    agreeing: int = 0
    compared: int = 0
    agreement: float = 0.0
    deviation: float = 0.0
    failure: str = ""


def serve(found: Sequence[Candidate], work: Work, seconds: float, seed: int) -> tuple[dict[str, Served], AnswerCheck]:
    """Compare the answers of all backends, then time them in turns for about ``seconds``.

    In each round every backend computes all of the work, in random order, so that disturbances of the machine affect
    all alike. The comparison of answers and some more rounds come first and are not timed, as some backends optimize
    themselves in their first calls.

    :returns: results by backend, and the first backend's check for answers that differ in a batch.
    :raises RunnerError: the first backend, the reference, fails.
    """
    ready = [candidate for candidate in found if not candidate.missing]
    served = {candidate.backend: Served() for candidate in ready}
    with torch.no_grad():
        check = _compare_all(ready, work, served)
        _time_all(
            [candidate for candidate in ready if not served[candidate.backend].failure], work, served, seconds, seed
        )
    return served, check


def one_pass_s(candidate: Candidate, inputs: Sequence[Any]) -> float:
    """Seconds that a backend takes for some inputs after one untimed pass.

    :raises RunnerError: it fails on an input.
    """
    try:
        with torch.no_grad():
            _timed(candidate.model, inputs)
            return _timed(candidate.model, inputs) / 1e9
    except USER_ERRORS as error:
        raise RunnerError(model_error(error)) from error


def _compare_all(ready: Sequence[Candidate], work: Work, served: Mapping[str, Served]) -> AnswerCheck:
    first: list[Any] = []
    for candidate in ready:
        one = served[candidate.backend]
        try:
            answers = _answers(candidate.model, work)
            for _ in range(_WARM_UPS):
                _timed(candidate.model, work.singles)
                _timed(candidate.model, work.batches)
        except USER_ERRORS as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if not first:
                raise RunnerError(model_error(error)) from error
            one.failure = f"running it raised {describe(error)}"
            continue
        if not first:
            first = answers
            own, expected = _reference(first, work)
        _compare(one, answers, first, own, expected, work)
    return own.check


def _reference(first: Sequence[Any], work: Work) -> tuple[OwnAnswers, list[Answer]]:
    """The variation of the first backend's own answers, and reference answers in the order of :func:`_answers`."""
    named, count = [outputs_of(one, work.names) for one in first], len(work.singles)
    alone, batched = named[:count], named[count:]
    shapes = [shapes_of(arrays_of(single)) for single in work.singles]
    ids = work.ids or [str(k) for k in range(len(alone))]
    own = own_variation(ids, alone, batched, [], work.rules, shapes)
    pairs = zip(alone, batched, own.agreements, strict=True)
    return own, alone + [single if share == 1.0 else shared for single, shared, share in pairs]


def _compare(
    one: Served, answers: Sequence[Any], first: Sequence[Any], own: OwnAnswers, expected: Sequence[Answer], work: Work
) -> None:
    named = [outputs_of(got, work.names) for got in answers]
    found = [compare(own.yardstick, wanted, got) for wanted, got in zip(expected, named, strict=True)]
    one.compared, one.agreeing = len(found), sum(each.agreement == 1.0 for each in found)
    one.agreement = sum(each.agreement for each in found) / len(found)
    one.deviation = max(deviation_of(wanted, got) for wanted, got in zip(first, answers, strict=True))


def _answers(model: Any, work: Work) -> list[Any]:
    """Answers to all requests alone, then to all in batches; a batch must return an answer to each request."""
    alone = [split_output(call_on_copy(model, single), 1)[0] for single in work.singles]
    batched = [
        output
        for batch, size in zip(work.batches, work.sizes, strict=True)
        for output in split_output(call_on_copy(model, batch), size)
    ]
    return alone + batched


def _time_all(
    ready: Sequence[Candidate], work: Work, served: Mapping[str, Served], seconds: float, seed: int
) -> None:
    order = list(ready)
    drawn = random.Random(seed)
    end = time.perf_counter() + seconds
    for number in range(_MOST_ROUNDS):
        if number >= _FEWEST_ROUNDS and time.perf_counter() > end:
            return
        drawn.shuffle(order)
        for candidate in order:
            one = served[candidate.backend]
            one.single_ns.append(_timed(candidate.model, work.singles))
            one.batched_ns.append(_timed(candidate.model, work.batches))


def _timed(model: Any, inputs: Sequence[Any]) -> int:
    inputs = [on_copy(value) for value in inputs]
    start = time.perf_counter_ns()
    for value in inputs:
        call_model(model, value)
    return time.perf_counter_ns() - start


def rate(round_ns: Sequence[int], requests: int) -> Interval:
    """Requests per second over all rounds, with an interval from the variation of rounds (infinite below five)."""
    value = requests * len(round_ns) / (sum(round_ns) / 1e9)
    return _interval(value, -np.log(_group_times(round_ns)))


def speedup(base_ns: Sequence[int], round_ns: Sequence[int]) -> Interval:
    """Speed relative to the first backend, over the rounds that both computed in turns."""
    value = sum(base_ns) / sum(round_ns)
    return _interval(value, np.log(_group_times(base_ns)) - np.log(_group_times(round_ns)))


def _group_times(round_ns: Sequence[int]) -> Any:
    """Mean times of groups of neighboring rounds; the number of groups is about the square root of that of rounds.

    Neighbors share disturbances of the machine; groups of them are nearly independent.
    """
    groups = max(_FEWEST_ROUNDS, math.isqrt(len(round_ns)))
    if len(round_ns) < groups:
        return np.zeros(0)
    return np.array([part.mean() for part in np.array_split(np.asarray(round_ns, dtype=np.float64), groups)])


def _interval(value: float, logs: Any) -> Interval:
    """The value with its 95 % interval: Student's t on the logarithm, over groups of rounds."""
    if not len(logs):
        return Interval(value=value, lo=-math.inf, hi=math.inf)
    half = between(logs, 0.05)[1]
    return Interval(value=value, lo=value * math.exp(-half), hi=value * math.exp(half))
