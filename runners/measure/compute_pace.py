"""How fast a loaded service computes: the same few batches again and again, alone and in company.

What a change does to the compute of a batch is seen in seconds this way, while a tail takes minutes of replay. The
figures are of a warm service without queues: they say how much compute changes, not what latency becomes. Workers,
and requests that are being prepared, are in the way of a batch (cores, caches, the interpreter's lock), and of some
ways to run a model more than of others: :func:`blend` weighs these by how much of each was seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from latfix.arrays import Floats
from latfix.profilers.evidence.intervals import Intervals
from latfix.run_record.run_record import RunRecord
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe
from latfix.runners.gpu.device_selection import in_mode
from latfix.runners.host.cpu_placement import Places, limit_operator_threads

if TYPE_CHECKING:
    from latfix.runners.engine.worker import ModelInstance
    from latfix.runners.service.loaded_service import Service
    from latfix.traffic.schedule import Traffic

#: Batches that stand for a run, from its quickest to its slowest.
BATCHES = 10
#: Each is computed so often at least, unless that takes :data:`_LONG` times the time that it should.
_LEAST_PASSES, _LONG = 3, 4
_MOST_PASSES = 200


def typical_batches(record: RunRecord) -> list[list[int]]:
    """Batches of a run from its quickest to its slowest, evenly by rank, each as positions in the schedule."""
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
) -> list[float]:
    """Nanoseconds of each batch, so many workers computing at once: collate and compute, on a device compute alone.

    One worker with nothing beside: the least that was seen, for whatever else the machine did came on top. In company
    the median, for it is in the way every time.

    :param batches: positions in the schedule.
    :param seconds: about how long to measure; a batch that the model fails on counts as NaN.
    :param preparing: beside that, one thread prepares these requests over and over.
    :param failures: takes what the model's exceptions said.
    """
    failures = [] if failures is None else failures
    adapter = service.models.adapter
    inputs: list[list[Any]] = []
    for batch in batches:
        try:
            inputs.append([adapter.prepare(traffic.request(position)) for position in batch])
        except USER_ERRORS:  # its request fails in every replay, too
            inputs.append([])
    begun = time.perf_counter()
    until, at_last = begun + seconds, begun + _LONG * seconds
    instances = service.models.instances[:workers]
    took: list[list[list[float]]] = [[[] for _ in batches] for _ in instances]
    threads = [
        threading.Thread(
            target=_compute,
            args=(service, instance, inputs, took[k], failures, until, at_last),
            name=f"latfix-pace-{k}",
        )
        for k, instance in enumerate(instances)
    ]
    ended = threading.Event()
    company = threading.Thread(target=_prepare, args=(service, traffic, batches, ended), name="latfix-pace-prepare")
    if preparing:
        threads.append(company)
    try:
        for thread in threads:
            thread.start()
        for thread in threads[: len(instances)]:
            thread.join()
    finally:
        ended.set()
    threads[-1].join()
    merged = [sum((of_worker[k] for of_worker in took), start=list[float]()) for k in range(len(batches))]
    typical = np.min if workers == 1 and not preparing else np.median
    return [float(typical(times)) if times else float("nan") for times in merged]


def _compute(
    service: Service,
    instance: ModelInstance,
    inputs: list[list[Any]],
    took: list[list[float]],
    failures: list[str],
    until: float,
    at_last: float,
) -> None:
    import torch

    if service.settings.intra_op_threads:
        torch.set_num_threads(service.settings.intra_op_threads)
    some = [k for k, batch in enumerate(inputs) if batch]
    mode = torch.inference_mode() if service.settings.inference_mode else torch.no_grad()
    with in_mode(instance.device, mode):
        for number in range(_MOST_PASSES + 1):
            # The first pass is a warm-up, and one more there is in any case.
            if number > 1 and time.perf_counter() > (until if number > _LEAST_PASSES else at_last):
                return
            for k in some:
                started = time.perf_counter_ns()
                try:
                    batch = instance.collate(inputs[k])  # held until the device is done with it
                    with instance.working():
                        placed = instance.on_device(batch)
                    if instance.accelerator is not None:  # copies are stages of their own there
                        started = time.perf_counter_ns()
                    with instance.working():
                        call_model(instance.model, placed)
                except USER_ERRORS as error:  # as above
                    failures.append(describe(error))
                    continue
                if number:
                    took[k].append(time.perf_counter_ns() - started)


def _prepare(service: Service, traffic: Traffic, batches: Sequence[Sequence[int]], ended: threading.Event) -> None:
    limit_operator_threads(service.settings, Places(service.settings).prepare(0))
    for position in cycle(chain.from_iterable(batches)):
        if ended.is_set():
            return
        try:
            service.models.adapter.prepare(traffic.request(position))
        except USER_ERRORS:  # its request fails in every replay, too
            continue


def passes_s(seconds: float, once: float) -> float:
    """About how long :func:`measure_pace` takes on one worker.

    :param seconds: as it is told.
    :param once: seconds that the batches take once.
    """
    return max(seconds, min((1 + _LEAST_PASSES) * once, max(_LONG * seconds, 2 * once)))


def offered(record: RunRecord, within: Sequence[tuple[float, float]] = ()) -> float:
    """How many workers were computing on average: the time that batches held one, over the time of the traffic.

    :param within: stretches of the schedule, in nanoseconds; the whole of it where there are none.
    """
    rows, batches = record.requests, record.batches
    arrival, measured = rows["arrival_ns"], record.measured
    if within:
        measured = measured & np.any([(arrival >= begin) & (arrival < end) for begin, end in within], axis=0)
        span = sum(end - begin for begin, end in within)
    else:
        span = float(np.ptp(arrival[measured])) if measured.any() else 0.0
    mine = np.isin(batches["batch_id"], np.unique(rows["batch_id"][measured]))
    held = float((batches["d2h_end_ns"] - batches["close_ns"])[mine].sum())
    return held / span if span > 0 else 0.0


def prepared_beside(record: RunRecord) -> float:
    """The share of the time that batches held a worker in which some request was being prepared."""
    rows, batches = record.requests, record.batches
    begin = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_wait_ns"]
    prepared = Intervals.merged(begin, rows["prepare_ns"] - rows["prepare_wait_ns"])
    held = int((batches["d2h_end_ns"] - batches["close_ns"]).sum())
    return int(prepared.covered(batches["close_ns"], batches["d2h_end_ns"]).sum()) / held if held > 0 else 0.0


def blend(paces: Mapping[str, Floats], load: float, workers: int, prepared: float) -> list[float]:
    """What batches take where so much is offered: between what they take alone and what they take in company.

    :param paces: nanoseconds by batch: ``alone``, ``together`` with all other workers, some ``beside`` requests that
        are prepared, the others NaN.
    :param load: workers' worth of work (:func:`offered`); each other worker computes for that share of the time.
    :param prepared: see :func:`prepared_beside`.
    """
    alone, share = paces["alone"], min(max(load / workers, 0.0), 1.0)
    shared = (1.0 - share) * alone + share * paces["together"]
    slower = paces["beside"] / alone
    held_up = float(np.nanmedian(slower)) if np.isfinite(slower).any() else 1.0
    return list(shared * (1.0 + prepared * (held_up - 1.0)))
