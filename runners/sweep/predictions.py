"""Predictions beside every point of a sweep: queueing models, and latfix's own replay of the runner's queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfix.capacity.batch_queue_model import BatchService, fit_batch_service
from latfix.capacity.model_discrepancies import Reason, reasons
from latfix.capacity.model_predictions import (
    Modelled,
    Prediction,
    ServiceModel,
    model_load,
    service_model,
)
from latfix.capacity.objective import percentile_of
from latfix.results.sweep import Measured, ModelErrors, Outcome, Setting
from latfix.run_record.run_record import RunRecord
from latfix.runners.sweep.replay_prediction import measured_work, replayed, replays_exactly

#: Models in the order in which reports show them.
MODELS: tuple[str, ...] = ("mm1", "mg1", "kingman", "replay", "replay_own")


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What models say of one load of one setting.

    :param predictions: by :data:`MODELS`. ``replay_own`` is the queue replayed with the service measured at that
        very load: what it misses is not the service's doing.
    """

    predictions: Mapping[str, Prediction]
    modelled: Modelled
    reasons: tuple[Reason, ...]


def predict(outcome: Outcome, *, seed: int) -> dict[int, tuple[ServiceModel | None, dict[float, Predicted]]]:
    """For each setting, its service as measured at low load, and what that predicts of every load."""
    return {
        setting.number: _predict_setting(outcome, setting, seed)
        for setting in outcome.settings
        if outcome.points(setting.number)
    }


def _predict_setting(
    outcome: Outcome, setting: Setting, seed: int
) -> tuple[ServiceModel | None, dict[float, Predicted]]:
    points = outcome.points(setting.number)
    service = service_model([(load, ones[0].point) for load, ones in points.items()], setting.settings)
    if service is None:
        return None, {}
    lowest = points[service.loads[0]][0]
    low = RunRecord.load(lowest.folder)
    predicted = {}
    for load, ones in points.items():
        modelled = model_load(
            float(np.mean([one.point.offered for one in ones])),
            service,
            outcome.part.bursts,
            setting.settings,
            outcome.target,
            lag=lowest.point.lag,
            fitted=load in service.loads,
            seed=seed,
        )
        own = _own_service(ones[0], service.batch)
        predicted[load] = Predicted(
            predictions={
                **modelled.predictions,
                "replay": _replayed(outcome, setting, ones[0], low, service.batch, fitted=load == lowest.load),
                "replay_own": _replayed(outcome, setting, ones[0], None, own, fitted=True),
            },
            modelled=modelled,
            reasons=tuple(reasons(ones[0].point, load, service, lowest.point, modelled, setting.settings)),
        )
    return service, predicted


def _own_service(one: Measured, usual: BatchService) -> BatchService:
    """The service at this very load, in the shape of the usual one where its batches are few."""
    batches = one.point.batches
    if len(batches.size) < 20 or float(np.ptp(batches.size)) == 0:
        measured = float(batches.service.mean()) if len(batches.size) else 0.0
        expected = float(usual.mean(batches.size).mean()) if len(batches.size) else 0.0
        factor = measured / expected if expected > 0 else 1.0
        return replace(usual, fixed=usual.fixed * factor, each=usual.each * factor)
    return fit_batch_service(batches.size, batches.service)


def _replayed(
    outcome: Outcome, setting: Setting, one: Measured, low: RunRecord | None, service: BatchService, *, fitted: bool
) -> Prediction:
    """The queue replayed at a load, with the work of ``low``, or with that of the point itself."""
    why_not = replays_exactly(setting.settings)
    if one.point.cut:
        why_not = "the replay of this load was ended early"
    elif not one.point.requests["ok"]:
        why_not = "no request ended ok at this load"
    if why_not:
        return Prediction(why_not=why_not)
    schedule = outcome.part.at(one.load)
    record = low if low is not None else RunRecord.load(one.folder)
    wait, latency = replayed(measured_work(record, service, setting.settings), schedule, setting.settings)
    return Prediction(
        wait=float(wait.mean()),
        latency=float(latency.mean()),
        percentile=percentile_of([latency], outcome.target.percentile).value,
        fitted=fitted,
    )


def typical_errors(outcome: Outcome, predicted: Mapping[int, Mapping[float, Predicted]]) -> dict[str, ModelErrors]:
    """How far each model is off at loads that it was not fitted to and that are not saturated."""
    return {name: _typical_error(name, outcome, predicted) for name in MODELS}


def _typical_error(name: str, outcome: Outcome, predicted: Mapping[int, Mapping[float, Predicted]]) -> ModelErrors:
    waits, percentiles, silent = [], [], 0
    for number, cells in outcome.cells().items():
        for cell in cells:
            entry = predicted.get(number, {}).get(cell.load)
            if entry is None or cell.saturated or (entry.predictions[name].fitted and name != "replay_own"):
                continue
            answer = entry.predictions[name]
            if answer.wait is None or answer.percentile is None:
                silent += 1
                continue
            measured = _mean_wait(outcome.points(number)[cell.load])
            waits += _factor(answer.wait, measured)
            percentiles += _factor(answer.percentile, cell.percentile.value)
    return ModelErrors(
        wait=float(np.median(waits)) if waits else None,
        percentile=float(np.median(percentiles)) if percentiles else None,
        loads=len(percentiles) + silent,
        silent=silent,
    )


def _mean_wait(ones: Sequence[Measured]) -> float:
    waits = np.concatenate([one.point.wait for one in ones])
    return float(waits.mean()) if len(waits) else math.nan


def _factor(predicted: float, measured: float) -> list[float]:
    """How many times too large or too small; nothing where either is no positive number."""
    if not (math.isfinite(measured) and measured > 0 and predicted > 0):
        return []
    return [max(predicted / measured, measured / predicted)]
