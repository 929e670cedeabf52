"""Predictions of queueing theory for each replayed load, and why they differ from the measurement.

Every model is the forecast of the replay at a low load, under the model's assumptions on arrivals and service. A
model that is a formula (Kingman's correction for bursts, exponential service) is applied to the simulated waits.
``replay_own`` is the forecast of the same replay that it is compared with: its error is not caused by the service.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from latfix.arrays import Floats
from latfix.capacity.model_departures import ModelPrediction, reasons
from latfix.capacity.objective import LatencyObjective
from latfix.capacity.service_moments import fit_batch_service, mean_and_scv, relaxation_time
from latfix.capacity.sweep_traffic import Part
from latfix.results.sweep import LoadPrediction, ServiceMoments
from latfix.runners.sweep.load_forecast import Simulated
from latfix.runners.sweep.sweep_state import LoadTheory, Theory
from latfix.settings import RunnerSettings

#: In the order of reports.
MODELS: tuple[str, ...] = ("mm1", "mg1", "kingman", "replay", "replay_own")
#: Minimum number of batches in the replay from which models are fitted.
_ENOUGH_BATCHES = 20
#: Simulated independent arrivals: maximum for each load, total, minimum for each load; and the share of them, from
#: the start, that is left out.
_MOST, _ALL, _LEAST, _UNSETTLED = 10_000, 100_000, 1_000, 0.2


def theory_of(
    replays: Sequence[Simulated],
    settings: RunnerSettings,
    part: Part,
    target: LatencyObjective,
    *,
    seed: int,
    points: int = 1,
) -> Theory | None:
    """Predictions of all models for every load of a setting; ``None`` if no replay can be simulated.

    Models are fitted to one replay: that of the lowest load in which batches reached half of the maximum size,
    because the time of larger batches is unknown.

    :param replays: one for each load, in ascending order.
    :param points: number of loads of all settings, which share the time for simulations.
    """
    usable = [one for one in replays if one.whole and len(one.point.batches.size)]
    if not usable:
        return None
    base = next((one for one in usable if _shows_batches(one, settings)), usable[-1])
    sizes, took = base.point.batches.size, base.point.batches.service
    batch, (prepare, prepare_scv) = fit_batch_service(sizes, took), mean_and_scv(base.point.prepare)
    full = float(batch.mean(settings.max_batch_size))
    stations = [(full / settings.max_batch_size, settings.workers), (prepare, settings.prepare_threads)]
    capacity = min((servers / each for each, servers in stations if each > 0), default=math.inf)
    arrivals = min(max(_ALL // points, _LEAST), _MOST)
    loads = {}
    for one in replays:
        rate = one.point.offered
        relaxation = relaxation_time(rate, capacity)
        longest = (part.bursts.windows[-1] if part.bursts.windows else 1.0) / rate
        window = min(max(relaxation, 1.0 / rate), longest)
        index = part.bursts.over(window * rate)
        # Variance of the work that arrives during a full batch, over that of independent arrivals; by model, the
        # variability of arrivals and of service: Poisson and exponential, Poisson and measured, both measured.
        during = 1.0 if settings.max_batch_size == 1 else rate * full
        variability = ("mm1", 1.0, 1.0), ("mg1", 1.0, batch.scv), ("kingman", index, batch.scv)
        scale = {name: (a + during * c) / (1 + during * batch.scv) for name, a, c in variability}
        predictions = _predictions(base, one, settings, part, target, scale, relaxation, arrivals, seed)
        waits = {name: predictions[name].mean_wait_ms for name in ("mg1", "kingman")}
        modelled = ModelPrediction(
            waits={name: None if wait is None else wait / 1e3 for name, wait in waits.items()},
            index=index,
            window=window,
            relaxation=relaxation,
            capacity=capacity,
            batch=batch,
            measured_at=base.load,
        )
        loads[one.load] = LoadTheory(
            predictions=predictions,
            dispersion=index,
            relaxation=relaxation,
            reasons=tuple(reasons(one.point, one.load, base.point, modelled, settings)),
        )
    moments = ServiceMoments(
        batch_fixed_ms=batch.fixed * 1e3,
        batch_each_ms=batch.each * 1e3,
        batch_scv=batch.scv,
        prepare_mean_ms=prepare * 1e3,
        prepare_scv=prepare_scv,
        measured_at_loads=(base.load,),
    )
    return Theory(service=moments, capacity=capacity, loads=loads)


def _shows_batches(one: Simulated, settings: RunnerSettings) -> bool:
    sizes = one.point.batches.size
    return len(sizes) >= _ENOUGH_BATCHES and 2 * float(sizes.max()) >= settings.max_batch_size


def _predictions(
    base: Simulated,
    one: Simulated,
    settings: RunnerSettings,
    part: Part,
    target: LatencyObjective,
    scale: dict[str, float],
    relaxation: float,
    arrivals: int,
    seed: int,
) -> dict[str, LoadPrediction]:
    unknown = _unknown(settings)
    if unknown:
        return dict.fromkeys(MODELS, _no_prediction(unknown))
    fitted, rate = one.load == base.load, one.point.offered
    found = {}
    rng = np.random.default_rng(seed)
    if math.isfinite(relaxation):
        wait, latency = base.served(np.cumsum(rng.exponential(1e9 / rate, arrivals)))
        settled = slice(int(_UNSETTLED * arrivals), None)
        held = np.minimum(wait, settings.batch_window_ms / 1e3)[settled]
        queued, service = wait[settled] - held, (latency - wait)[settled]
        for name, factor in scale.items():
            drawn = service.mean() * rng.standard_exponential(len(service)) if name == "mm1" else service
            found[name] = _prediction(held + factor * queued, drawn, target, fitted)
    else:
        found = dict.fromkeys(scale, _no_prediction("it cannot keep up with this rate", fitted))
    arrival = part.arrivals(one.load)[: part.sent(one.load)]
    for name, known in (("replay", base), ("replay_own", one)):
        if not known.whole:
            found[name] = _no_prediction("the replay of this load ended early, or too few of its requests ended ok")
        else:
            wait, latency = known.served(arrival)
            found[name] = _prediction(wait, latency - wait, target, fitted or name == "replay_own")
    return found


def _prediction(wait: Floats, service: Floats, target: LatencyObjective, fitted: bool) -> LoadPrediction:
    latency = wait + service
    return LoadPrediction(
        mean_wait_ms=float(wait.mean()) * 1e3,
        mean_ms=float(latency.mean()) * 1e3,
        percentile_ms=float(np.percentile(latency, target.percentile)) * 1e3,
        fitted=fitted,
        why_not=None,
    )


def _no_prediction(why_not: str, fitted: bool = False) -> LoadPrediction:
    nothing: dict[str, Any] = dict.fromkeys(("mean_wait_ms", "mean_ms", "percentile_ms"))
    return LoadPrediction(**nothing, fitted=fitted, why_not=why_not)


def _unknown(settings: RunnerSettings) -> str:
    """Why the models do not apply to these settings; empty if they do."""
    if settings.batching != "fixed":
        return f"the models do not support batching = {settings.batching!r}"
    if settings.schedule != "arrival":
        return f"the models do not support schedule = {settings.schedule!r}"
    if settings.admission != "all" or settings.max_queue:
        return "the models do not shed requests"
    return ""
