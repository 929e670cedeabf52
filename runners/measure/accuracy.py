"""Accuracy of a service: the workload's own score, or agreement of its outputs with the original's."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import RunnerError
from latfix.request import Request
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.calls.output_agreement import Difference, difference, flatten
from latfix.runners.measure.accuracy_guard import Loss, judge, paired_loss
from latfix.runners.service.loaded_service import Service
from latfix.stages import Status
from latfix.statistics.distributions import wilson_interval
from latfix.traffic.schedule import Traffic

#: Requests whose outputs are compared where the workload has no score of its own; as many again where they do not
#: decide.
AGREEMENT_SAMPLE = 256
#: From so many requests on, those that a choice was made by are others than those that it is judged by.
_ENOUGH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """A service's accuracy. Intervals are of 95 %; what could not be measured is ``None``.

    :param score: higher is better.
    :param kind: ``evaluate`` (the workload's own score) or ``agreement`` (share of outputs that agree).
    :param samples: requests that it rests on.
    :param lo: lower end of the score, as that of a share of ``samples`` (Wilson); of a score outside 0 to 1
        nothing is known.
    :param loss: of the score against the original's, on the same requests.
    :param agreement: share of the same requests to which the original says the same.
    :param deviation: see :class:`latfix.runners.calls.output_agreement.Difference`; ``broken`` likewise.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The original's answers.

    :param sample: flattened answers to a sample of the traffic, ``None`` for a request that failed; empty where the
        workload has a score of its own.
    :param ids: of the requests that ``evaluate`` asked for, in that order; empty where there is no ``evaluate``.
    :param answers: what it was given for them.
    :param score: what it made of them.
    """

    sample: tuple[list[Any] | None, ...]
    ids: tuple[str, ...] = ()
    answers: tuple[Any, ...] = ()
    score: float | None = None

    def save(self, file: Path) -> None:
        """Write it to one file, for another process of the same workload.

        Answers that cannot be pickled are left out, and with them the comparison of scores request by request.
        """
        arrays = {f"{k}.{j}": leaf for k, leaves in enumerate(self.sample) for j, leaf in enumerate(leaves or ())}
        counts = np.array([-1 if leaves is None else len(leaves) for leaves in self.sample], dtype=np.int64)
        try:
            scored = pickle.dumps((self.ids, self.answers, self.score))
        except Exception:  # noqa: BLE001 - whatever a user's own class raises when it is pickled
            scored = pickle.dumps(((), (), None))
        np.savez(file, count=counts, scored=np.frombuffer(scored, dtype=np.uint8), **arrays)

    @classmethod
    def load(cls, file: Path) -> Reference:
        """Read what :meth:`save` wrote; the file is this program's own."""
        with np.load(file) as archive:
            counts = archive["count"].tolist()
            sample = tuple(None if n < 0 else [archive[f"{k}.{j}"] for j in range(n)] for k, n in enumerate(counts))
            ids, answers, score = pickle.loads(archive["scored"].tobytes())
        return cls(sample=sample, ids=ids, answers=answers, score=score)


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

    :param reference: the original's answers (``save``, or :func:`save_outputs`), without which there is no loss,
        no agreement, and for a workload without ``evaluate`` no score other than 1.
    :param max_drop: the loss that is allowed; where it is given, and the first requests do not decide, more are
        compared.
    :param save: write this service's answers there, as a reference for others.
    :param spare: compare on other requests of the traffic than the guard does, to choose settings by.
    :raises RunnerError: ``evaluate`` failed or returned no number, or a request failed.
    """
    known = None if reference is None else Reference.load(reference)
    if not service.models.adapter.has_evaluate():
        if save is not None:
            save_outputs(service, traffic, save, spare=spare)
        if known is None:
            return Accuracy(score=1.0, kind="agreement", samples=0)
        return _agreement(service, sample_requests(traffic, spare=spare), known, max_drop)
    asked = _evaluated(service)
    if save is not None:
        Reference(sample=(), ids=tuple(asked.ids), answers=tuple(asked.answers), score=asked.score).save(save)
    return _scored(service, asked, known)


def save_outputs(service: Service, traffic: Traffic, file: Path, *, spare: bool = False) -> int:
    """Save the outputs on a sample of the traffic; returns how many."""
    answers = _answers(service, sample_requests(traffic, spare=spare))
    Reference(sample=tuple(answers)).save(file)
    return len(answers)


def sample_requests(traffic: Traffic, *, spare: bool = False) -> list[Request]:
    """Requests spread over the traffic: every other one first, so that the first half is spread as well.

    :param spare: take them from the other half of the traffic, where there is enough of it.
    """
    n = len(traffic)
    pool = range(int(spare), n, 2) if n >= _ENOUGH else range(n)
    size = min(2 * AGREEMENT_SAMPLE, len(pool))
    step = len(pool) / max(size, 1)
    picks = list(dict.fromkeys(pool[int(k * step)] for k in range(size)))
    return [traffic.request(pick) for pick in (*picks[::2], *picks[1::2])]


def _agreement(
    service: Service, requests: Sequence[Request], reference: Reference, max_drop: float | None
) -> Accuracy:
    """Agreement with the original on half of the sample, and on all of it where that does not decide."""
    count = min(AGREEMENT_SAMPLE, len(reference.sample), len(requests))
    answers = _answers(service, requests[:count])
    found = _agreeing(difference(reference.sample[:count], answers))
    more = min(len(reference.sample), len(requests))
    if max_drop is None or more == count or _decided(found, max_drop):
        return found
    answers += _answers(service, requests[count:more])
    return _agreeing(difference(reference.sample[:more], answers))


def _decided(found: Accuracy, max_drop: float) -> bool:
    """Whether more requests cannot change the verdict: it is allowed, or its whole interval lies beyond the limit."""
    allowed, _ = judge(asdict(found), 1.0, max_drop)
    return allowed or (found.loss_lo is not None and found.loss_lo > max_drop)


def _agreement_fields(found: Difference) -> dict[str, Any]:
    lo, hi = wilson_interval(found.agreeing, found.compared)
    return {
        "agreement": found.agreeing / max(found.compared, 1),
        "agreement_lo": lo,
        "agreement_hi": hi,
        "deviation": found.deviation,
        "broken": found.broken,
    }


def _agreeing(found: Difference) -> Accuracy:
    fields = _agreement_fields(found)
    share, lo, hi = fields["agreement"], fields["agreement_lo"], fields["agreement_hi"]
    loss = {"loss": 1.0 - share, "loss_lo": 1.0 - hi, "loss_hi": 1.0 - lo}
    return Accuracy(score=share, kind="agreement", samples=found.compared, lo=lo, hi=hi, **loss, **fields)


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
    found = difference([flatten(one) for one in reference.answers], [flatten(one) for one in asked.answers])
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


def _answers(service: Service, requests: Sequence[Request]) -> list[list[Any] | None]:
    """Flattened outputs; ``None`` for a request that failed."""
    outcomes = service.predict(requests)
    return [flatten(outcome.output) if outcome.status == Status.OK else None for outcome in outcomes]
