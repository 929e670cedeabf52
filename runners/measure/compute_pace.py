"""How fast a loaded service computes: the same few batches repeatedly, alone and next to other work.

This shows in seconds how a change affects the compute of a batch, while a tail takes minutes of replay. The service
is warm and has no queue: the figures show how compute changes, not latency. Other workers, and the preparation of
requests, slow a batch down (cores, caches, the interpreter's lock), for some ways to run a model more than for
others: :func:`blend` weights the measurements by how often each happens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from latfix.arrays import Floats
from latfix.profilers.evidence.intervals import Intervals
from latfix.run_record.run_record import RunRecord
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe
from latfix.runners.calls.tensor_tree import arrays_of
from latfix.runners.gpu.device_selection import in_mode
from latfix.runners.host.cpu_placement import Places, limit_operator_threads

if TYPE_CHECKING:
    from latfix.runners.engine.worker import ModelInstance
    from latfix.runners.service.loaded_service import Service
    from latfix.traffic.schedule import Traffic

#: Batches that represent a run, from its fastest to its slowest.
BATCHES = 10
#: Minimum number of passes, unless they take :data:`_LONG` times the requested time.
_LEAST_PASSES, _LONG = 3, 4
_MOST_PASSES = 200


def typical_batches(record: RunRecord) -> list[list[int]]:
    """Batches of a run from its fastest to its slowest, evenly by rank, each as positions in the schedule."""
    rows, batches = record.requests, record.batches
    usable = (batches["warmup"] == 0) & (batches["retried"] == 0) & (batches["first_shape"] == 0)
    if not usable.any():
        usable = batches["warmup"] == 0
    compute = (batches["compute_end_ns"] - batches["h2d_end_ns"])[usable]
    ids = batches["batch_id"][usable][np.argsort(compute, kind="stable")]
    if not len(ids):
        return []
    picks = ids[np.unique(np.linspace(0, len(ids) - 1, BATCHES).round().astype(int))]
    measured = rows["index"] >= 0
    members = [rows["index"][measured & (rows["batch_id"] == pick)].tolist() for pick in picks]
    return [batch for batch in members if batch]


def measure_pace(
    service: Service,
    traffic: Traffic,
    batches: Sequence[Sequence[int]],
    seconds: float,
    *,
    workers: int,
    preparing: bool = False,
    failures: list[str] | None = None,
    new_shapes: list[float] | None = None,
) -> list[float]:
    """Nanoseconds of each batch while several workers compute: collate and compute, on a device only compute.

    For one worker alone the minimum, because other activity of the machine only adds to it; otherwise the median,
    because other work is part of the measurement. A batch on which the model fails is NaN.

    :param batches: positions in the schedule.
    :param seconds: about how long to measure.
    :param workers: number of workers that compute at the same time.
    :param preparing: one more thread prepares the requests repeatedly.
    :param failures: receives the messages of the model's exceptions.
    :param new_shapes: receives how many nanoseconds longer the first batch of each new shape took, without the first
        of all.
    """
    failures = [] if failures is None else failures
    new_shapes = [] if new_shapes is None else new_shapes
    adapter = service.models.adapter
    inputs: list[list[Any]] = []
    for batch in batches:
        try:
            inputs.append([adapter.prepare(traffic.request(position)) for position in batch])
        except USER_ERRORS:  # its request also fails in every replay
            inputs.append([])
    started = time.perf_counter()
    until, at_last = started + seconds, started + _LONG * seconds
    instances = service.models.instances[:workers]
    took: list[list[list[float]]] = [[[] for _ in batches] for _ in instances]
    ended = threading.Event()
    preparer = threading.Thread(target=_prepare, args=(service, traffic, batches, ended), name="latfix-pace-prepare")
    try:
        if preparing:
            preparer.start()
        jobs = [
            instance.thread.start(
                partial(_compute, service, instance, inputs, took[k], (failures, new_shapes), (until, at_last)),
                f"latfix-pace-{k}",
            )
            for k, instance in enumerate(instances)
        ]
        for job in jobs:
            job.join()
    finally:
        ended.set()
    if preparing:
        preparer.join()
    merged = [sum((of_worker[k] for of_worker in took), start=list[float]()) for k in range(len(batches))]
    typical = np.min if workers == 1 and not preparing else np.median
    return [float(typical(times)) if times else float("nan") for times in merged]


def _compute(
    service: Service,
    instance: ModelInstance,
    inputs: list[list[Any]],
    took: list[list[float]],
    found: tuple[list[str], list[float]],
    limits: tuple[float, float],
) -> None:
    import torch

    (failures, new_shapes), (until, at_last) = found, limits

    if service.settings.intra_op_threads:
        torch.set_num_threads(service.settings.intra_op_threads)
    usable = [k for k, batch in enumerate(inputs) if batch]
    mode = torch.inference_mode() if service.settings.inference_mode else torch.no_grad()
    new: list[int] = []
    with in_mode(instance.device, mode):
        for number in range(_MOST_PASSES + 1):
            if number and time.perf_counter() > (until if number > _LEAST_PASSES else at_last):
                break
            for k in usable:
                started = time.perf_counter_ns()
                try:
                    batch = instance.collate(inputs[k])  # kept until the device is done with it
                    if not number and instance.first_time(arrays_of(batch)):
                        new.append(k)
                    with instance.working():
                        placed = instance.on_device(batch)
                    if instance.accelerator is not None:  # on a device, copies are separate stages
                        started = time.perf_counter_ns()
                    with instance.working():
                        call_model(instance.model, placed)
                except USER_ERRORS as error:  # as above
                    failures.append(describe(error))
                    continue
                took[k].append(time.perf_counter_ns() - started)
    # Not the least of the others: on a busy machine the first exceeds that without being slow itself.
    new_shapes += [took[k][0] - float(np.median(took[k][1:])) for k in new if k != usable[0] and len(took[k]) > 1]
    for times in took:
        # The first pass is a warm-up. If it alone took too long, a neighbor has the cores, and it has to do.
        del times[: len(times) > 1]


def _prepare(service: Service, traffic: Traffic, batches: Sequence[Sequence[int]], ended: threading.Event) -> None:
    limit_operator_threads(service.settings, Places(service.settings).prepare(0))
    for position in cycle(chain.from_iterable(batches)):
        if ended.is_set():
            return
        try:
            service.models.adapter.prepare(traffic.request(position))
        except USER_ERRORS:  # as above
            continue


def passes_s(seconds: float, once: float) -> float:
    """About how long :func:`measure_pace` takes on one worker.

    :param seconds: its argument.
    :param once: seconds that the batches take once.
    """
    if once > _LONG * seconds:
        return once
    return max(seconds, min((1 + _LEAST_PASSES) * once, max(_LONG * seconds, 2 * once)))


def offered(record: RunRecord) -> float:
    """Mean number of busy workers: time in which batches held a worker, over the time of the traffic."""
    rows, batches, measured = record.requests, record.batches, record.measured
    span = float(np.ptp(rows["arrival_ns"][measured])) if measured.any() else 0.0
    mine = np.isin(batches["batch_id"], np.unique(rows["batch_id"][measured]))
    begin, worker = batches["close_ns"][mine], batches["worker"][mine] // record.meta.settings.places
    length, held = batches["d2h_end_ns"][mine] - begin, 0
    for one in np.unique(worker):  # a worker's batches overlap with continuous batching
        busy = Intervals.merged(begin[worker == one], length[worker == one])
        held += int((busy.end - busy.start).sum())
    return held / span if span > 0 else 0.0


def preparing_share(record: RunRecord) -> float:
    """Share of the batches' time in which a request was being prepared."""
    rows, batches = record.requests, record.batches
    begin = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_wait_ns"]
    prepared = Intervals.merged(begin, rows["prepare_ns"] - rows["prepare_wait_ns"])
    held = int((batches["d2h_end_ns"] - batches["close_ns"]).sum())
    return int(prepared.covered(batches["close_ns"], batches["d2h_end_ns"]).sum()) / held if held > 0 else 0.0


def blend(paces: Mapping[str, Floats], load: float, workers: int, prepared: float) -> list[float]:
    """Nanoseconds of batches under load, interpolated between measurements alone and next to other work.

    :param paces: nanoseconds by batch: ``alone``; ``together`` with all other workers; ``beside`` the preparation of
        requests, NaN for batches that were not measured so.
    :param load: mean number of busy workers (:func:`offered`).
    :param prepared: see :func:`preparing_share`.
    """
    alone, share = paces["alone"], min(max(load / workers, 0.0), 1.0)
    shared = (1.0 - share) * alone + share * paces["together"]
    slower = paces["beside"] / alone
    factor = float(np.nanmedian(slower)) if np.isfinite(slower).any() else 1.0
    return list(shared * (1.0 + prepared * (factor - 1.0)))
