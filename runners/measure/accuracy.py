"""Accuracy of a service: the workload's own score, or agreement of its outputs with the original's."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import RunnerError, input_error
from latfix.request import Request
from latfix.runners.answers import plain_archive
from latfix.runners.answers.agreement import Difference, Yardstick, difference
from latfix.runners.answers.named_outputs import Answer, Output, outputs_of
from latfix.runners.answers.output_distance import Floats
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.measure.accuracy_guard import Loss, judge, paired_loss, share_loss
from latfix.runners.measure.own_answers import answers_alone, answers_in_batches, look_at_own
from latfix.runners.service.loaded_service import Service
from latfix.stages import Status
from latfix.statistics.distributions import wilson_interval
from latfix.traffic.schedule import Traffic

#: Requests whose outputs are compared where the workload has no score of its own; as many again where they do not
#: decide. None of so many that says otherwise excludes a loss of 0.02, twice the usual limit.
AGREEMENT_SAMPLE = 192
#: From so many requests on, those that a choice was made by are others than those that it is judged by.
_ENOUGH = 128
#: Requests by which a service that has a score of its own shows whether it answers otherwise in a batch; after so
#: many seconds so many are enough.
_LOOKED_AT, _LOOKS_END = 64, ((4.0, 16), (8.0, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """A service's accuracy. Intervals are of 95 %; what could not be measured is ``None``.

    :param score: higher is better.
    :param kind: ``evaluate`` (the workload's own score), or ``agreement: `` and the kinds of outputs: the mean
        share of an answer that says what the original says to that request alone.
    :param samples: requests that it rests on.
    :param lo: lower end of the score, as that of a share of ``samples`` (Wilson); of a score outside 0 to 1
        nothing is known.
    :param loss: of the score against the original's, on the same requests. Where the original itself answers
        otherwise in a batch, it is of answers to requests alone, unless batches lost more for sure.
    :param agreement: mean share of the same answers that says what the original's do.
    :param deviation: see :class:`latfix.runners.answers.agreement.Difference`; ``broken`` and ``same`` likewise.
    :param answers: of the original, what its answers are judged by and whether they differ in batches
        (:class:`latfix.results.answer_check.AnswerCheck`); empty for others.
    :param again_s: of the original, about how many seconds it takes to score another service that is as fast.
    """

    score: float
    kind: str
    samples: int
    lo: float | None = None
    hi: float | None = None
    loss: float | None = None
    loss_lo: float | None = None
    loss_hi: float | None = None
    agreement: float | None = None
    agreement_lo: float | None = None
    agreement_hi: float | None = None
    deviation: float | None = None
    broken: int = 0
    same: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    again_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The original's answers.

    :param sample: answers to requests of the traffic alone, ``None`` for one that failed; empty where the workload
        has a score of its own.
    :param agreements: ``(len(sample),)`` of its own answers to them in its batches.
    :param yardstick: what answers are judged by; ``None`` where there was no request to tell it from.
    :param ids: of the requests that ``evaluate`` asked for, in that order; empty where there is no ``evaluate``.
    :param answers: what it was given for them.
    :param score: what it made of them.
    """

    sample: tuple[Answer | None, ...] = ()
    agreements: Floats = field(default_factory=lambda: np.zeros(0))
    yardstick: Yardstick = field(default_factory=lambda: Yardstick(measures={}))
    ids: tuple[str, ...] = ()
    answers: tuple[Any, ...] = ()
    score: float | None = None

    def save(self, file: Path) -> None:
        """Write it to one file, for another process of the same workload.

        Answers to ``evaluate`` of types that :mod:`plain_archive` does not know are left out, and with them the
        comparison of scores request by request.
        """
        told = {
            "sample": [None if answer is None else [tuple(leaf) for leaf in answer] for answer in self.sample],
            "agreements": self.agreements,
            "yardstick": self.yardstick.to_json(),
        }
        try:
            plain_archive.save(file, {**told, "scored": (self.ids, self.answers, self.score)})
        except plain_archive.Unwritable:
            plain_archive.save(file, {**told, "scored": ((), (), None)})

    @classmethod
    def load(cls, file: Path) -> Reference:
        """Read what :meth:`save` wrote.

        :raises InputError: the file holds something else; nothing in it is executed.
        """
        told = plain_archive.load(file)
        try:
            ids, answers, score = told["scored"]
            return cls(
                sample=tuple(
                    None if leaves is None else [Output(name, values) for name, values in leaves]
                    for leaves in told["sample"]
                ),
                agreements=told["agreements"],
                yardstick=Yardstick.from_json(told["yardstick"]),
                ids=ids,
                answers=answers,
                score=score,
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            found, todo = "something else than a model's answers", "begin anew in another folder"
            raise input_error(file, None, found, "what a search's baseline answered", todo) from error


@dataclass(slots=True)
class _Asked:
    """What ``evaluate`` asked for, and was answered."""

    ids: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    score: float = math.nan


def evaluate(
    service: Service,
    traffic: Traffic,
    reference: Path | None,
    *,
    max_drop: float | None = None,
    save: Path | None = None,
    spare: bool = False,
) -> Accuracy:
    """Measure a loaded service's accuracy.

    :param reference: the original's answers (``save``), without which there is no loss,
        no agreement, and for a workload without ``evaluate`` no score other than 1.
    :param max_drop: the loss that is allowed; where it is given, and the first requests do not decide, more are
        compared.
    :param save: write this service's answers there, as a reference for others.
    :param spare: compare on other requests of the traffic than the guard does, to choose settings by.
    :raises RunnerError: ``evaluate`` failed or returned no number, or a request failed.
    """
    known = None if reference is None else Reference.load(reference)
    requests = sample_requests(traffic, spare=spare)
    if service.models.adapter.has_evaluate():
        return _by_own_score(service, requests, known, save)
    if known is not None:
        return _agreement(service, requests, known, max_drop)
    return Accuracy(score=1.0, kind="agreement", samples=0) if save is None else _saved(service, requests, save)


def sample_requests(traffic: Traffic, *, spare: bool = False) -> list[Request]:
    """Requests spread over the traffic, in an order in which the first few are spread as well.

    :param spare: take them from the other half of the traffic, where there is enough of it.
    """
    n = len(traffic)
    pool = range(int(spare), n, 2) if n >= _ENOUGH else range(n)
    size = min(2 * AGREEMENT_SAMPLE, len(pool))
    step = len(pool) / max(size, 1)
    picks = list(dict.fromkeys(pool[int(k * step)] for k in range(size)))
    digits = size.bit_length()
    # Binary digits in reverse: each next one halves a gap (van der Corput, 1935).
    order = sorted(range(len(picks)), key=lambda k: int(f"{k:0{digits}b}"[::-1], 2))
    return [traffic.request(picks[k]) for k in order]


def _saved(service: Service, requests: Sequence[Request], file: Path) -> Accuracy:
    """The original's answers, each request alone, and its accuracy: how far its own batches agree with them."""
    alone, own = look_at_own(service, requests)
    Reference(sample=tuple(alone), agreements=own.agreements, yardstick=own.yardstick).save(file)
    count = own.check.compared or len(alone)
    share = float(own.agreements[:count].mean()) if count else 1.0
    lo, hi = wilson_interval(share * count, count)
    return Accuracy(
        score=share,
        kind=_kind(own.yardstick),
        samples=count,
        lo=lo,
        hi=hi,
        answers=own.check.to_json(),
        again_s=own.shared_s * min(AGREEMENT_SAMPLE / max(len(alone), 1), 1.0),
    )


def _kind(yardstick: Yardstick) -> str:
    return f"agreement: {yardstick.kinds}" if yardstick.measures else "agreement"


def _agreement(
    service: Service, requests: Sequence[Request], reference: Reference, max_drop: float | None
) -> Accuracy:
    """Agreement with the original on half of the sample, and on all of it where that does not decide."""
    count = min(AGREEMENT_SAMPLE, len(reference.sample), len(requests))
    answers = answers_in_batches(service, requests[:count])
    found = _agreeing(service, requests, reference, answers, max_drop)
    more = min(len(reference.sample), len(requests))
    if max_drop is None or more == count or _decided(found, max_drop):
        return found
    answers += answers_in_batches(service, requests[count:more])
    return _agreeing(service, requests, reference, answers, max_drop)


def _agreeing(
    service: Service,
    requests: Sequence[Request],
    reference: Reference,
    answers: Sequence[Answer | None],
    max_drop: float | None,
) -> Accuracy:
    count = len(answers)
    sample, yardstick = reference.sample[:count], reference.yardstick
    found = difference(yardstick, sample, answers)
    own = np.array(
        [agreement for agreement, answer in zip(reference.agreements, sample, strict=False) if answer is not None]
    )
    loss = share_loss(own - found.agreements)
    if (own < 1.0).any() and (max_drop is None or loss.lo <= max_drop):
        # Who shares a batch is chance, and what that does to answers is the original's fault, not this service's.
        alone = difference(yardstick, sample, answers_alone(service, requests[:count]))
        loss = share_loss(1.0 - alone.agreements)
        found = Difference(
            agreements=found.agreements, deviation=alone.deviation, broken=found.broken, same=alone.same
        )
    fields = _agreement_fields(found)
    return Accuracy(
        score=found.agreement,
        kind=_kind(yardstick),
        samples=len(found.agreements),
        lo=fields["agreement_lo"],
        hi=fields["agreement_hi"],
        loss=loss.value,
        loss_lo=loss.lo,
        loss_hi=loss.hi,
        **fields,
    )


def _decided(found: Accuracy, max_drop: float) -> bool:
    """Whether more requests cannot change the verdict: it is allowed, or its whole interval lies beyond the limit."""
    allowed, _ = judge(asdict(found), 1.0, max_drop)
    return allowed or (found.loss_lo is not None and found.loss_lo > max_drop)


def _agreement_fields(found: Difference) -> dict[str, Any]:
    lo, hi = wilson_interval(found.agreement * len(found.agreements), len(found.agreements))
    return {
        "agreement": found.agreement,
        "agreement_lo": lo,
        "agreement_hi": hi,
        "deviation": found.deviation,
        "broken": found.broken,
        "same": found.same,
    }


def _by_own_score(
    service: Service, requests: Sequence[Request], known: Reference | None, save: Path | None
) -> Accuracy:
    started = time.monotonic()
    asked = _evaluated(service)
    again_s = time.monotonic() - started
    if save is None:
        return _scored(service, asked, known)
    _, own = look_at_own(service, requests[:_LOOKED_AT], ends=_LOOKS_END)
    Reference(yardstick=own.yardstick, ids=tuple(asked.ids), answers=tuple(asked.answers), score=asked.score).save(
        save
    )
    return replace(_scored(service, asked, known), answers=own.check.to_json(), again_s=again_s)


def _evaluated(service: Service) -> _Asked:
    asked = _Asked()

    def predict(requests: Sequence[Request]) -> list[Any]:
        answers = _outputs(service, list(requests))
        asked.ids += [request.id for request in requests]
        asked.answers += answers
        return answers

    asked.score = _score(service, predict)
    return asked


def _score(service: Service, predict: Any) -> float:
    adapter = service.models.adapter
    try:
        score = float(adapter.evaluate(predict))
    except RunnerError:
        raise
    except USER_ERRORS as error:
        raise RunnerError(f"{type(adapter).__name__}.evaluate raised {describe(error)}") from error
    if not math.isfinite(score):
        raise RunnerError(f"{type(adapter).__name__}.evaluate returned {score}; expected a finite score")
    return score


def _scored(service: Service, asked: _Asked, reference: Reference | None) -> Accuracy:
    n = len(asked.ids)
    own: dict[str, Any] = {"score": asked.score, "kind": "evaluate", "samples": n}
    if 0.0 <= asked.score <= 1.0 and n:
        own["lo"], own["hi"] = wilson_interval(round(asked.score * n), n)
    # A score of requests drawn anew each time cannot be paired.
    if reference is None or reference.score is None or reference.ids != tuple(asked.ids):
        return Accuracy(**own)
    before, after = ([outputs_of(one) for one in answers] for answers in (reference.answers, asked.answers))
    found = difference(reference.yardstick, before, after)
    own |= {**_agreement_fields(found), "loss": reference.score - asked.score}
    loss = _loss(service, asked, reference)
    if loss is not None:
        own |= {"loss": loss.value, "loss_lo": loss.lo, "loss_hi": loss.hi}
    return Accuracy(**own)


def _loss(service: Service, asked: _Asked, reference: Reference) -> Loss | None:
    """The loss with its interval; ``None`` where the score is no function of the answers alone."""

    def score_of(answers: list[Any]) -> float:
        place = 0

        def predict(requests: Sequence[Request]) -> list[Any]:
            nonlocal place
            place += len(requests)
            return answers[place - len(requests) : place]

        return _score(service, predict)

    if score_of(list(reference.answers)) != reference.score or score_of(asked.answers) != asked.score:
        return None
    return paired_loss(score_of, reference.answers, asked.answers)


def _outputs(service: Service, requests: list[Request]) -> list[Any]:
    outcomes = service.predict(requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        if outcome.status != Status.OK:
            raise RunnerError(f"request {request.id!r} failed while measuring accuracy: {outcome.error}")
    return [outcome.output for outcome in outcomes]
