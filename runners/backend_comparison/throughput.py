"""How fast backends serve one workload: interleaved in one process, their answers compared with the first one's."""

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
from latfix.runners.answers.named_outputs import Answer, outputs_of
from latfix.runners.answers.output_distance import deviation_of
from latfix.runners.answers.own_variation import OwnAnswers, own_variation
from latfix.runners.backend_comparison.candidates import Candidate
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe, split_output
from latfix.runners.calls.tensor_tree import tensors_of
from latfix.statistics.decision import Interval
from latfix.statistics.distributions import student_t

#: Rounds below which there is no interval.
_FEWEST_ROUNDS = 5
_MOST_ROUNDS = 400
#: Untimed rounds of each backend. TorchScript watches the first call of a shape and compiles in the second one.
_WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Work:
    """What every backend computes in a round.

    :param singles: requests on their own, each a batch of one.
    :param batches: the same requests in batches.
    :param sizes: requests in each batch.
    :param ids: of the requests.
    :param names: of the model's outputs, where a file has them.
    :param rules: what ``[outputs]`` declares.
    """

    singles: Sequence[Any]
    batches: Sequence[Any]
    sizes: Sequence[int]
    ids: Sequence[str] = ()
    names: Sequence[str] = ()
    rules: Mapping[str, OutputRule] = field(default_factory=dict)


@dataclass(slots=True)
class Served:
    """What a backend did.

    :param single_ns: of each round, all requests on their own; ``batched_ns`` in batches.
    :param agreeing: answers that agree with those of the first backend to each request alone, of ``compared``: each
        request is answered alone and in a batch. What the first one answers otherwise in a batch is compared with
        that. ``agreement`` is the mean share of an answer that says the same.
    :param deviation: the largest difference of a number, as a share of the largest one in that answer, with each
        request alone or in the same batch.
    :param failure: why it was left out; empty where it was not.
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

    In each round every backend computes all of the work, in an order that is drawn anew, so that what the machine
    does meanwhile meets all of them alike. What each does first is not timed: it compares the answers, and serves
    all of the work once more, as some backends optimize themselves in the first calls.

    :returns: by backend what it did, and whether the first one answers otherwise in a batch.
    :raises RunnerError: the first one fails, which the others are compared with.
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
    """Seconds that a backend takes for some inputs, after having seen each once.

    :raises RunnerError: it fails on one.
    """
    try:
        with torch.no_grad():
            _timed(candidate.model, inputs)
            return _timed(candidate.model, inputs) / 1e9
    except USER_ERRORS as error:
        raise RunnerError(f"the model raised {describe(error)}") from error


@dataclass(frozen=True, slots=True)
class _Answered:
    """Answers as the model gave them: each request alone, then all of them in batches."""

    alone: list[Any]
    batched: list[Any]


def _compare_all(ready: Sequence[Candidate], work: Work, served: Mapping[str, Served]) -> AnswerCheck:
    first: _Answered | None = None
    for candidate in ready:
        one = served[candidate.backend]
        try:
            answers = _answers(candidate.model, work)
            _warm_up(candidate.model, work)
        except USER_ERRORS as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if first is None:
                raise RunnerError(f"the model raised {describe(error)}") from error
            one.failure = f"running it raised {describe(error)}"
            continue
        if first is None:
            first = answers
            own, expected = _reference(first, work)
        _compare(one, answers, first, own, expected, work)
    return own.check


def _reference(first: _Answered, work: Work) -> tuple[OwnAnswers, list[Answer]]:
    """How far the first backend's own answers vary, and what all are compared with, alone and then in batches."""
    alone, batched = ([outputs_of(one, work.names) for one in each] for each in (first.alone, first.batched))
    shapes = [[tuple(tensor.shape) for tensor in tensors_of(single)] for single in work.singles]
    ids = work.ids or [str(k) for k in range(len(alone))]
    own = own_variation(ids, alone, batched, [], work.rules, shapes)
    cured = zip(alone, batched, own.agreements, strict=True)
    return own, alone + [single if share == 1.0 else shared for single, shared, share in cured]


def _compare(
    one: Served, answers: _Answered, first: _Answered, own: OwnAnswers, expected: Sequence[Answer], work: Work
) -> None:
    given = [*answers.alone, *answers.batched]
    named = [outputs_of(got, work.names) for got in given]
    found = [compare(own.yardstick, wanted, got) for wanted, got in zip(expected, named, strict=True)]
    one.compared, one.agreeing = len(found), sum(each.agreement == 1.0 for each in found)
    one.agreement = sum(each.agreement for each in found) / len(found)
    likes = zip([*first.alone, *first.batched], given, strict=True)
    one.deviation = max(deviation_of(wanted, got) for wanted, got in likes)


def _warm_up(model: Any, work: Work) -> None:
    for _ in range(_WARM_UPS):
        _timed(model, work.singles)
        _timed(model, work.batches)


def _answers(model: Any, work: Work) -> _Answered:
    """Answers to all requests, on their own and in batches; no answer may be lost in a batch."""
    alone = [split_output(call_model(model, single), 1)[0] for single in work.singles]
    batched = [
        output
        for batch, size in zip(work.batches, work.sizes, strict=True)
        for output in split_output(call_model(model, batch), size)
    ]
    return _Answered(alone, batched)


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
    start = time.perf_counter_ns()
    for value in inputs:
        call_model(model, value)
    return time.perf_counter_ns() - start


def rate(round_ns: Sequence[int], requests: int) -> Interval:
    """Requests a second: those of all rounds by their time together, with an interval from how rounds differ.

    Infinite below five rounds.
    """
    value = requests * len(round_ns) / (sum(round_ns) / 1e9)
    return _interval(value, -np.log(_group_times(round_ns)))


def speedup(base_ns: Sequence[int], round_ns: Sequence[int]) -> Interval:
    """How many times as fast as the first backend, by the rounds that both computed in turns."""
    value = sum(base_ns) / sum(round_ns)
    return _interval(value, np.log(_group_times(base_ns)) - np.log(_group_times(round_ns)))


def _group_times(round_ns: Sequence[int]) -> Any:
    """Mean times of runs of neighboring rounds, of which there are about the square root of their number.

    Neighbors share what the machine does meanwhile; runs of them are nearly independent.
    """
    groups = max(_FEWEST_ROUNDS, math.isqrt(len(round_ns)))
    if len(round_ns) < groups:
        return np.zeros(0)
    return np.array([part.mean() for part in np.array_split(np.asarray(round_ns, dtype=np.float64), groups)])


def _interval(value: float, logs: Any) -> Interval:
    """The value with its 95 % interval: Student's t on the logarithm, over groups of rounds."""
    if not len(logs):
        return Interval(value=value, lo=-math.inf, hi=math.inf)
    half = float(student_t(0.95, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return Interval(value=value, lo=value * math.exp(-half), hi=value * math.exp(half))
