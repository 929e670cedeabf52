"""What queueing models predict for a measured service at each load.

The models are given what was measured at a low load: moments of the service, and batches' time by their size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.capacity.batch_queue_model import BatchService, batch_wait, fit_batch_service
from latfix.capacity.measured_load import LoadPoint
from latfix.capacity.objective import Target
from latfix.capacity.queueing_models import Service, Wait, ggc_wait, percentile_of_sum, relaxation_time
from latfix.capacity.sweep_traffic import Burstiness
from latfix.settings import RunnerSettings

Floats = npt.NDArray[np.float64]

#: A point rests on at least so many batches where another one can be had.
_ENOUGH_BATCHES = 20
#: Draws of the batch's size and service that a percentile is read from.
_SERVICE_DRAWS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceModel:
    """A service as it was measured, for the models.

    :param prepare: samples of the prepare pool's service, in seconds, and ``batch`` the batches'.
    :param noise: ``(m,)`` measured over fitted service of each batch.
    :param loads: of the points that it was measured at.
    """

    prepare: Floats
    batch: BatchService
    noise: Floats
    loads: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A model's prediction for a load, in seconds; all ``None`` where the service cannot keep up.

    :param wait: mean before service, in both queues and an open batch.
    :param latency: mean, and ``percentile`` the objective's.
    :param fitted: the model was given what was measured at this very load.
    :param why_not: why there is no prediction.
    """

    wait: float | None = None
    latency: float | None = None
    percentile: float | None = None
    fitted: bool = False
    why_not: str = ""


def service_model(points: Sequence[tuple[float, LoadPoint]], settings: RunnerSettings) -> ServiceModel | None:
    """The service as measured at the lowest loads; ``None`` where no batch ran.

    One load where batches of one are served. Where the batch size varies, loads are added from below until half of
    the largest size was seen: nothing is known of batches that were never measured.

    :param points: load and replay.
    """
    ordered = sorted((pair for pair in points if len(pair[1].batches.size)), key=lambda pair: (pair[1].grew, pair[0]))
    if not ordered:
        return None
    used: list[tuple[float, LoadPoint]] = []
    for pair in ordered:
        used.append(pair)
        sizes = np.concatenate([point.batches.size for _, point in used])
        if len(sizes) >= _ENOUGH_BATCHES and 2 * sizes.max() >= settings.max_batch_size:
            break
    size = np.concatenate([point.batches.size for _, point in used])
    took = np.concatenate([point.batches.service for _, point in used])
    batch = fit_batch_service(size, took)
    return ServiceModel(
        prepare=np.concatenate([point.prepare for _, point in used]),
        batch=batch,
        noise=took / np.maximum(batch.mean(size), 1e-12),
        loads=tuple(sorted({load for load, _ in used})),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """The models' answers at one load.

    :param index: of dispersion that arrivals have over the queue's time scale, ``window`` seconds.
    :param capacity: requests a second that full batches could serve.
    """

    predictions: Mapping[str, Prediction]
    index: float
    window: float
    relaxation: float
    capacity: float


def model_load(
    rate: float,
    service: ServiceModel,
    bursts: Burstiness,
    settings: RunnerSettings,
    target: Target,
    *,
    lag: Floats,
    fitted: bool = False,
    seed: int = 0,
) -> Modelled:
    """``mm1``, ``mg1`` and ``kingman`` at a rate; with more than one worker or thread their extensions.

    Both stations, prepare pool and workers, are taken for queues of their own, one behind the other and independent
    (Jackson, 1957). Batches are served as :mod:`latfix.capacity.batch_queue_model` describes.

    :param lag: the replay's own lag, part of every latency.
    """
    capacity = service.batch.capacity(settings.max_batch_size, settings.workers)
    pool = Service.of(service.prepare)
    if pool.mean > 0:
        capacity = min(capacity, settings.prepare_threads / pool.mean)
    each = float(service.batch.mean(settings.max_batch_size)) / settings.max_batch_size
    relaxation = relaxation_time(rate, each, settings.workers)
    longest = (bursts.windows[-1] if bursts.windows else 1.0) / rate
    window = min(max(relaxation, 1.0 / rate), longest)
    index = bursts.over(window * rate)
    one, exponential = (
        Service(mean=pool.mean, scv=1.0),
        BatchService(fixed=service.batch.fixed, each=service.batch.each, scv=1.0),
    )
    variants = {
        "mm1": (one, exponential, 1.0),
        "mg1": (pool, service.batch, 1.0),
        "kingman": (pool, service.batch, index),
    }
    return Modelled(
        predictions={
            name: _prediction(rate, *variant, service, settings, target, lag, fitted, seed, memoryless=name == "mm1")
            for name, variant in variants.items()
        },
        index=index,
        window=window,
        relaxation=relaxation,
        capacity=capacity,
    )


def _prediction(
    rate: float,
    pool: Service,
    batch: BatchService,
    arrival_scv: float,
    measured: ServiceModel,
    settings: RunnerSettings,
    target: Target,
    lag: Floats,
    fitted: bool,
    seed: int,
    *,
    memoryless: bool,
) -> Prediction:
    if settings.batching != "fixed":
        return Prediction(why_not=f"the models do not know batching = {settings.batching!r}")
    prepare = ggc_wait(rate, pool, arrival_scv=arrival_scv, servers=settings.prepare_threads)
    queue = batch_wait(
        rate,
        batch,
        most=settings.max_batch_size,
        window=settings.batch_window_ms / 1e3 if settings.max_batch_size > 1 else 0.0,
        arrival_scv=arrival_scv,
        workers=settings.workers,
    )
    if prepare is None or queue is None:
        return Prediction(fitted=fitted, why_not="it cannot keep up with this rate")
    rng = np.random.default_rng(seed)
    sizes = rng.choice(len(queue.size_share), size=_SERVICE_DRAWS, p=queue.size_share)
    if memoryless:
        even = -np.log1p(-(np.arange(_SERVICE_DRAWS) + 0.5) / _SERVICE_DRAWS)
        served = batch.mean(sizes) * rng.permutation(even)
        prepared = pool.mean * even
    else:
        served = batch.mean(sizes) * rng.choice(measured.noise, size=_SERVICE_DRAWS)
        prepared = measured.prepare
    waits: list[Wait] = [prepare, queue.wait]
    parts = [prepared, served, lag]
    wait = prepare.total_mean + queue.wait.total_mean
    return Prediction(
        wait=wait,
        latency=wait + sum(float(np.mean(part)) for part in parts if len(part)),
        percentile=percentile_of_sum(waits, parts, target.percentile, seed=seed),
        fitted=fitted,
    )
