"""Accuracy of a service: the workload's own score, or agreement of its outputs with the original's."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Floats
from latfix.errors import RunnerError, input_error
from latfix.formatting import shown
from latfix.request import Request
from latfix.runners.answers import plain_archive
from latfix.runners.answers.agreement import Difference, Yardstick, difference
from latfix.runners.answers.exaggeration import narrowed
from latfix.runners.answers.named_outputs import Answer, Output, outputs_of
from latfix.runners.calls.model_call import USER_ERRORS, raised_by
from latfix.runners.measure.accuracy_guard import judge, paired_loss, share_loss, too_few_to_tell
from latfix.runners.measure.own_answers import ALONE, answers_of, compare_own
from latfix.runners.service.loaded_service import Service
from latfix.stages import Status
from latfix.statistics.decision import Interval
from latfix.statistics.distributions import wilson_interval
from latfix.traffic.schedule import Traffic

#: Requests whose outputs are compared if the workload has no score of its own; twice as many if they do not decide.
#: If all of them agree, a loss of 0.02, twice the usual limit, is excluded.
AGREEMENT_SAMPLE = 192
#: From this many requests on, choices are made on other requests than those on which they are judged.
_ENOUGH = 128
#: Requests that show whether a service with a score of its own answers differently in a batch; after this many
#: seconds, this many are enough.
_OWN_SAMPLE, _OWN_ENDS = 64, ((4.0, 16), (8.0, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """A service's accuracy. Intervals are of 95 %; ``None`` is unknown.

    :param score: higher is better.
    :param kind: ``evaluate`` (the workload's own score), or ``agreement: `` and the kinds of outputs: the mean share
        of an answer that agrees with the original's answer to the request alone.
    :param samples: number of requests.
    :param lo: lower end of the score, as of a share of ``samples`` (Wilson); ``None`` for a score outside 0 to 1.
    :param loss: of the score against the original's, on the same requests. If the original itself answers differently
        in a batch, the loss is that of answers to requests alone, unless batches certainly lost more.
    :param agreement: mean share of the answers that agrees with the original's.
    :param deviation: see :class:`latfix.runners.answers.agreement.Difference`; ``broken`` and ``same`` likewise.
    :param answers: for the original, how its answers are judged and whether they differ in batches
        (:class:`latfix.results.answer_check.AnswerCheck`); empty for others.
    :param again_s: for the original, about how many seconds it takes to score another service that is as fast.
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

    :param sample: answers to requests of the traffic, each alone, ``None`` for one that failed; empty if the workload
        has a score of its own, or if its answers cannot be compared.
    :param agreements: ``(len(sample),)``, of its answers to the same requests in batches.
    :param yardstick: how answers are judged.
    :param ids: of the requests that ``evaluate`` predicted, in order; empty without ``evaluate``.
    :param answers: to these requests.
    :param score: that ``evaluate`` returned.
    """

    sample: tuple[Answer | None, ...] = ()
    agreements: Floats = field(default_factory=lambda: np.zeros(0))
    yardstick: Yardstick = field(default_factory=lambda: Yardstick(measures={}))
    ids: tuple[str, ...] = ()
    answers: tuple[Any, ...] = ()
    score: float | None = None

    def save(self, file: Path) -> None:
        """Write it to one file, for another process of the same workload.

        If :mod:`plain_archive` does not know a type among the answers to ``evaluate``, they are left out, and scores
        cannot be compared request by request.
        """
        fields = {
            "sample": [None if answer is None else [tuple(leaf) for leaf in answer] for answer in self.sample],
            "agreements": self.agreements,
            "yardstick": self.yardstick.to_json(),
        }
        try:
            plain_archive.save(file, {**fields, "scored": (self.ids, self.answers, self.score)})
        except plain_archive.Unwritable:
            plain_archive.save(file, {**fields, "scored": ((), (), None)})

    @classmethod
    def load(cls, file: Path) -> Reference:
        """Read what :meth:`save` wrote; nothing in the file is executed.

        :raises InputError: the file holds something else.
        """
        fields = plain_archive.load(file)
        try:
            ids, answers, score = fields["scored"]
            return cls(
                sample=tuple(
                    None if leaves is None else [Output(name, values) for name, values in leaves]
                    for leaves in fields["sample"]
                ),
                agreements=fields["agreements"],
                yardstick=Yardstick.from_json(fields["yardstick"]),
                ids=ids,
                answers=answers,
                score=score,
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            found, todo = "something else than a model's answers", "start again in another folder"
            raise input_error(file, None, found, "the answers of a search's baseline", todo) from error


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

    :param reference: the original's answers (``save``). Without it there is no loss and no agreement, and the score
        of a workload without ``evaluate`` is 1.
    :param max_drop: allowed loss; more requests are compared if the first ones do not decide it.
    :param save: file for this service's answers, as a reference for others.
    :param spare: compare on other requests of the traffic than the guard does, to choose settings by.
    :raises RunnerError: ``evaluate`` failed or returned no number, or a request failed.
    """
    known = None if reference is None else Reference.load(reference)
    requests = sample_requests(traffic, spare=spare)
    if service.models.adapter.has_evaluate():
        return _by_own_score(service, requests, known, max_drop, save)
    if known is not None:
        return _agreement(service, requests, known, max_drop)
    return Accuracy(score=1.0, kind="agreement", samples=0) if save is None else _saved(service, requests, save)


def sample_requests(traffic: Traffic, *, spare: bool = False) -> list[Request]:
    """Requests spread over the traffic, in an order in which the first few are spread as well.

    :param spare: take them from the other half of the traffic, if it is long enough.
    """
    n = len(traffic)
    pool = range(int(spare), n, 2) if n >= _ENOUGH else range(n)
    size = min(2 * AGREEMENT_SAMPLE, len(pool))
    step = len(pool) / max(size, 1)
    picks = list(dict.fromkeys(pool[int(k * step)] for k in range(size)))
    digits = size.bit_length()
    # Reversed binary digits: each position halves a gap (van der Corput, 1935).
    order = sorted(range(len(picks)), key=lambda k: int(f"{k:0{digits}b}"[::-1], 2))
    return [traffic.request(picks[k]) for k in order]


def _saved(service: Service, requests: Sequence[Request], file: Path) -> Accuracy:
    """Save the original's answers to each request alone; its score is the agreement of its batches with them."""
    alone, own = compare_own(service, requests)
    sample = () if own.check.incomparable else tuple(alone)
    Reference(sample=sample, agreements=own.agreements, yardstick=own.yardstick).save(file)
    count = (own.check.compared or len(alone)) if sample else 0
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
    """Agreement with the original on half of the sample, and on all of it if that does not decide."""
    count = min(AGREEMENT_SAMPLE, len(reference.sample), len(requests))
    answers = answers_of(service, requests[:count])
    found = _agreeing(service, requests, reference, answers, max_drop)
    more = min(len(reference.sample), len(requests))
    if max_drop is None or more == count or _decided(found, max_drop):
        return found
    answers += answers_of(service, requests[count:more])
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
        # Batches form by chance, and the original itself is to blame if they change answers: compare without batches.
        answers = answers_of(service, requests[:count], ALONE)
        alone = difference(yardstick, sample, answers)
        loss = share_loss(1.0 - alone.agreements)
        found = replace(alone, agreements=found.agreements, broken=found.broken)
    if too_few_to_tell(loss, max_drop) and not found.broken:
        loss = _narrowed(loss, reference, answers)
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


def _narrowed(loss: Interval, reference: Reference, answers: Sequence[Answer | None]) -> Interval:
    """The loss of these answers with the upper end that their exaggerated deviation allows."""
    both = zip(reference.sample, answers, strict=False)
    judged = reference.yardstick.judged
    pairs = [(judged(a), judged(b)) for a, b in both if a is not None and b is not None]
    before, after = ([[output.values for output in pair[k]] for pair in pairs] for k in (0, 1))

    def loss_of(larger: list[Any]) -> Interval:
        named = [
            [Output(output.name, np.asarray(values)) for output, values in zip(a, each, strict=True)]
            for (a, _), each in zip(pairs, larger, strict=True)
        ]
        return share_loss(1.0 - difference(reference.yardstick, [a for a, _ in pairs], named).agreements)

    return narrowed(loss, before, after, loss_of)


def _decided(found: Accuracy, max_drop: float) -> bool:
    """True if more requests cannot change the verdict: it is allowed, or its whole interval is beyond the limit."""
    allowed, _ = judge(asdict(found), 1.0, max_drop)
    return bool(allowed) or (found.loss_lo is not None and found.loss_lo > max_drop)


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
    service: Service, requests: Sequence[Request], known: Reference | None, max_drop: float | None, save: Path | None
) -> Accuracy:
    started = time.monotonic()
    new = _evaluate(service)
    again_s = time.monotonic() - started
    accuracy = _compared_scores(service, new, known, max_drop)
    if save is None:
        return accuracy
    _, own = compare_own(service, requests[:_OWN_SAMPLE], ends=_OWN_ENDS)
    replace(new, yardstick=own.yardstick).save(save)
    return replace(accuracy, answers=own.check.to_json(), again_s=again_s)


def _evaluate(service: Service) -> Reference:
    ids, answers = list[str](), list[Any]()

    def predict(requests: Sequence[Request]) -> list[Any]:
        outcomes = service.predict(list(requests))
        for request, outcome in zip(requests, outcomes, strict=True):
            if outcome.status != Status.OK:
                raise RunnerError(f"request {request.id!r} failed while measuring accuracy: {outcome.error}")
        ids.extend(request.id for request in requests)
        answers.extend(outcome.output for outcome in outcomes)
        return answers[len(answers) - len(outcomes) :]

    score = _score(service, predict)
    if not ids:
        what = f"{type(service.models.adapter).__name__}.evaluate returned {shown(score)} without calling predict"
        raise RunnerError(f"{what}; expected a score of the answers of predict(requests), which is the served model")
    return Reference(ids=tuple(ids), answers=tuple(answers), score=score)


def _score(service: Service, predict: Any) -> float:
    adapter = service.models.adapter
    try:
        found = adapter.evaluate(predict)
    except RunnerError:
        raise
    except USER_ERRORS as error:
        raise RunnerError(raised_by(f"{type(adapter).__name__}.evaluate", error)) from error
    try:
        score = float(found)
    except (TypeError, ValueError, RuntimeError):  # the last of a tensor with several numbers
        score = math.nan
    if not math.isfinite(score):
        raise RunnerError(f"{type(adapter).__name__}.evaluate returned {shown(found)}; expected a finite number")
    return score


def _compared_scores(
    service: Service, new: Reference, reference: Reference | None, max_drop: float | None
) -> Accuracy:
    n, score = len(new.ids), new.score
    assert score is not None
    fields: dict[str, Any] = {"score": score, "kind": "evaluate", "samples": n}
    if 0.0 <= score <= 1.0 and n:
        fields["lo"], fields["hi"] = wilson_interval(round(score * n), n)
    # Scores cannot be paired if each evaluation draws other requests.
    if reference is None or reference.score is None or reference.ids != new.ids:
        return Accuracy(**fields)
    before, after = ([outputs_of(one) for one in answers] for answers in (reference.answers, new.answers))
    found = difference(reference.yardstick, before, after)
    fields |= {**_agreement_fields(found), "loss": reference.score - score}
    loss = _loss(service, new, reference, max_drop)
    if loss is not None:
        fields |= {"loss": loss.value, "loss_lo": loss.lo, "loss_hi": loss.hi}
    return Accuracy(**fields)


def _loss(service: Service, new: Reference, reference: Reference, max_drop: float | None) -> Interval | None:
    """The loss with its interval; ``None`` if the score does not depend on the answers alone.

    :param max_drop: if the interval does not decide on it, the answers' deviation is exaggerated.
    """

    def score_of(answers: list[Any]) -> float:
        place = 0

        def predict(requests: Sequence[Request]) -> list[Any]:
            nonlocal place
            place += len(requests)
            return answers[place - len(requests) : place]

        return _score(service, predict)

    if any(score_of(list(known.answers)) != known.score for known in (reference, new)):
        return None
    found = paired_loss(score_of, reference.answers, new.answers)
    if found is None or not too_few_to_tell(found, max_drop):
        return found

    def loss_of(answers: list[Any]) -> Interval | None:
        try:
            return paired_loss(score_of, reference.answers, answers)
        except RunnerError:  # a score that is defined for the model's own answers only
            return None

    return narrowed(found, reference.answers, new.answers, loss_of)
