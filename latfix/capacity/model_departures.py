"""Why a measured load departs from what queueing models predict: one sentence with figures for each reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from latfix.capacity.measured_load import LoadPoint
from latfix.capacity.service_moments import BatchService
from latfix.files.json_documents import Document, json_key
from latfix.formatting import milliseconds, percent, rate, seconds
from latfix.settings import RunnerSettings

#: A queue observed for fewer relaxation times has not settled.
_SETTLED = 20.0
#: Smaller departures, as a share, are not reported.
_REPORTED = 0.05
#: A mean wait that is off by this factor needs a reason.
_FAR_OFF = 1.5
#: Reasons that Kingman's formula, or the queue of batches, already accounts for.
_MODELLED = ("bursts", "window")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason(Document):
    """Why reality departs from a model, in a sentence and in figures."""

    id: str = field(metadata=json_key("reason"))
    text: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrediction:
    """What queueing models predict for one load. Times in seconds.

    :param waits: mean wait by model, ``mg1`` and ``kingman``; ``None`` if it has no answer.
    :param index: index of dispersion of arrivals over ``window``, the queue's time scale.
    :param relaxation: how long such a queue takes to settle; infinite if it cannot.
    :param capacity: requests per second that full batches and the prepare pool could serve.
    :param batch: service measured at load ``measured_at``, the input of the models.
    """

    waits: Mapping[str, float | None]
    index: float
    window: float
    relaxation: float
    capacity: float
    batch: BatchService
    measured_at: float


def reasons(
    point: LoadPoint, load: float, low: LoadPoint, modelled: ModelPrediction, settings: RunnerSettings
) -> list[Reason]:
    """Why a point departs from what queueing models predict at its rate.

    :param low: the replay that the models are based on.
    """
    found = [
        _overload(point, modelled),
        _bursts(modelled, point),
        _growth(point, load, low, modelled),
        _window(point, settings),
        _unsettled(point, modelled),
        _prepare(point),
        _lag(point),
        _lost(point),
    ]
    known = [reason for reason in found if reason is not None]
    if not any(reason.id not in _MODELLED for reason in known):
        known += _unexplained(point, modelled)
    return known


def _unexplained(point: LoadPoint, modelled: ModelPrediction) -> list[Reason]:
    """The reason for a model that is far off without any known reason."""
    predicted = modelled.waits["kingman"]
    measured = float(point.wait.mean()) if len(point.wait) else 0.0
    if not predicted or measured <= 0 or max(measured / predicted, predicted / measured) < _FAR_OFF:
        return []
    text = (
        f"the mean wait is {_ms(measured)} where Kingman predicts {_ms(predicted)}, for none of the known reasons: "
        "threads may wake late, long services may follow each other, or the formula may be inaccurate here"
    )
    return [Reason(id="unexplained", text=text, figures={"wait_ms": measured * 1e3, "kingman_ms": predicted * 1e3})]


def _overload(point: LoadPoint, modelled: ModelPrediction) -> Reason | None:
    if point.offered < modelled.capacity:
        return None
    text = (
        f"{rate(point.offered)} is more than full batches can serve ({rate(modelled.capacity)}): no model has a "
        "steady state, and what is measured grows with the length of the replay"
    )
    return Reason(id="overload", text=text, figures={"offered_rps": point.offered, "capacity_rps": modelled.capacity})


def _bursts(modelled: ModelPrediction, point: LoadPoint) -> Reason | None:
    if 0.8 <= modelled.index <= 1.25:
        return None
    plain, bursty = modelled.waits["mg1"], modelled.waits["kingman"]
    more = "burstier" if modelled.index > 1 else "more even"
    text = (
        f"arrivals are {more} than independent ones: index of dispersion {modelled.index:.3g} instead of 1 over "
        f"{seconds(modelled.window)}, the time scale of this queue at {rate(point.offered)}"
    )
    figures = {"index_of_dispersion": modelled.index, "window_s": modelled.window}
    if plain is not None and bursty is not None:
        text += f"; that takes the mean wait from {_ms(plain)} (M/G/1) to {_ms(bursty)} (Kingman)"
        figures |= {"mg1_wait_ms": plain * 1e3, "kingman_wait_ms": bursty * 1e3}
    return Reason(id="bursts", text=text, figures=figures)


def _growth(point: LoadPoint, load: float, low: LoadPoint, modelled: ModelPrediction) -> Reason | None:
    """Batches of one size take longer, or shorter, than at low load, and waits are off in the same direction."""
    here, there = point.batches, low.batches
    if point is low or len(here.size) < 5 or not len(there.size):
        return None
    took, expected = float(here.service.mean()), float(modelled.batch.mean(here.size).mean())
    ratio = took / expected if expected > 0 else 1.0
    predicted = modelled.waits["kingman"]
    longer = predicted is None or (len(point.wait) > 0 and float(point.wait.mean()) > predicted)
    if abs(ratio - 1) <= _REPORTED or (ratio > 1) != longer:
        return None
    verb = "longer" if ratio > 1 else "shorter"
    text = (
        f"service changes with load: batches of the same size take {percent(abs(ratio - 1))} {verb} here "
        f"than at load {modelled.measured_at:.3g} ({_ms(expected)} became {_ms(took)})"
    )
    figures = {"ratio": ratio, "expected_ms": expected * 1e3, "measured_ms": took * 1e3, "load": load}
    details = []
    padding = float(there.padding.mean()), float(here.padding.mean())
    if abs(padding[1] - padding[0]) > 0.01:
        details.append(f"padding {100 * padding[0]:.1f} % of the elements then, {100 * padding[1]:.1f} % here")
        figures |= {"padding_low": padding[0], "padding": padding[1]}
    delay = float(there.run_delay.mean()), float(here.run_delay.mean())
    if abs(delay[1] - delay[0]) > 0.02 * expected:
        details.append(f"waiting for a core {_ms(delay[0])} a batch then, {_ms(delay[1])} here")
        figures |= {"run_delay_low_ms": delay[0] * 1e3, "run_delay_ms": delay[1] * 1e3}
    if not details:
        details.append("neither padding nor waiting for a core: on-CPU time itself, as of shared caches and clocks")
    return Reason(id="service", text=f"{text}; {'; '.join(details)}", figures=figures)


def _window(point: LoadPoint, settings: RunnerSettings) -> Reason | None:
    served = point.latency[np.isfinite(point.latency)]
    if not settings.batch_window_ms or not len(point.batches.held) or not len(served):
        return None
    held = float((point.batches.held * point.batches.size).sum() / point.batches.size.sum())
    if held <= _REPORTED * float(served.mean()):
        return None
    text = (
        f"the batch window of {settings.batch_window_ms:g} ms holds a request's batch open for {_ms(held)} on "
        f"average at this load, and fills it to {point.mean_size:.3g}: models without batches have no such wait"
    )
    return Reason(id="window", text=text, figures={"held_ms": held * 1e3, "mean_batch": point.mean_size})


def _unsettled(point: LoadPoint, modelled: ModelPrediction) -> Reason | None:
    if not math.isfinite(modelled.relaxation) or point.span >= _SETTLED * modelled.relaxation:
        return None
    times = point.span / modelled.relaxation
    text = (
        f"the queue started empty and was observed for {seconds(point.span)}, {times:.2g} times what it takes to "
        f"settle ({seconds(modelled.relaxation)}): waits in steady state are longer than the measured ones, or "
        "rest on few bursts"
    )
    return Reason(id="unsettled", text=text, figures={"span_s": point.span, "relaxation_s": modelled.relaxation})


def _prepare(point: LoadPoint) -> Reason | None:
    if point.prepare_share < 0.6:
        return None
    workers = f"workers {percent(point.worker_share)}"
    text = f"prepare threads are busy {percent(point.prepare_share)} of the time ({workers})"
    return Reason(id="prepare", text=text, figures={"prepare": point.prepare_share, "workers": point.worker_share})


def _lag(point: LoadPoint) -> Reason | None:
    if point.trustworthy:
        return None
    text = f"the replay itself was late: {_ms(point.lag_p99)} at p99, part of every latency here"
    return Reason(id="lag", text=text, figures={"lag_p99_ms": point.lag_p99 * 1e3})


def _lost(point: LoadPoint) -> Reason | None:
    if not point.lost:
        return None
    total = sum(point.requests.values())
    text = f"{point.lost:,} of {total:,} requests were lost (error, timeout, shed)"
    if point.lost < total:
        text += "; the models assume that none is lost"
    return Reason(id="lost", text=text, figures={"lost": float(point.lost), "requests": float(total)})


def _ms(duration: float) -> str:
    return milliseconds(duration * 1e3)
