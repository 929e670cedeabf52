"""What even a healthy run shows: waits by chance, and the noise of a shared machine.

A service at a third of its capacity queues now and then, because independent callers sometimes arrive together.
Simulated memoryless arrivals at the run's rate and reference service time show how much. That is not a burst.

On a machine with neighbors the same work sometimes takes a little longer: the sibling thread of the core is busy, an
interrupt arrives, a kernel thread runs. Each such disturbance is small compared with the work that it delays, but a
queue adds them up. The part of the tail from small disturbances is not a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from latfix.arrays import Bools, Floats
from latfix.profilers.attribution.ledger import LedgerContext
from latfix.profilers.attribution.naming_rule import MACHINE_CAUSES
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.attribution.wait_attribution import Line, capacity, waits_at
from latfix.statistics.latency_summary import percentile_ns

#: From this share of capacity on, waits are due to the load and are named for any arrival process.
BUSY = 0.6
#: Simulated runs, of which all but one stay below the upper quantile; requests of each, which bound the time.
_RUNS, _UPPER, _MOST_REQUESTS = 40, 0.975, 4_000
#: Noise below this share of a cause's milliseconds is a minor part of them.
_MINOR = 0.25
#: A disturbance up to this share of a typical service time is noise of a shared machine.
SMALL = 0.6


def chance_wait_ns(line: Line, percentile: float, *, arrivals: int, span_ns: float, seed: int) -> float:
    """The mean wait of the requests at or above a percentile, under memoryless arrivals at the run's rate.

    :param arrivals: number of arrivals over ``span_ns``, from the first to the last.
    :returns: nanoseconds that 39 of 40 such runs stay below; 0 if the load exceeds :data:`BUSY`.
    """
    load = (arrivals - 1) / span_ns / capacity(line) if arrivals > 1 and span_ns > 0 else 0.0
    if not 0 < load < BUSY:
        return 0.0
    n = min(arrivals, _MOST_REQUESTS)
    gap = span_ns / (arrivals - 1)
    rng = np.random.default_rng(seed)
    waits = _waits(line, np.cumsum(rng.exponential(gap, (_RUNS, n)), axis=1))
    slowest = np.sort(waits, axis=1)[:, int(np.ceil((n - 1) * percentile / 100 - 1e-9)) :]
    return float(np.quantile(slowest.mean(axis=1), _UPPER))


def _waits(line: Line, handed: Floats) -> Floats:
    runs, n = handed.shape
    calm = replace(
        line,
        handed=handed[0],
        prepared=np.ones(n, dtype=bool),
        queued=np.ones(n, dtype=bool),
        priority=np.zeros(n, np.int64),
        prepare_extra=np.zeros((n, 0)),
        batch_extra=np.zeros((n, 0)),
        window_column=-1,
        ended=None,
        length=None,
        workers=replace(line.workers, window=0.0, by_length=False),
        recorded=None,
    )
    return waits_at(calm, np.zeros((runs, 0)), handed)


def above_noise(floors: Mapping[str, float], tail: Tail, percentile: float, books: LedgerContext) -> dict[str, float]:
    """Floors raised by the machine's noise, for the machine's causes that would be named otherwise.

    :param floors: by cause, the milliseconds that its interval must exceed.
    :param books: of the run, or of a sample of it.
    """
    order = list(books.ledger.causes)
    wanted = [cause for cause in MACHINE_CAUSES if tail.ci95_ms[order.index(cause), 0] > floors[cause]]
    latency = books.ledger.latency_ns
    members = np.asarray(latency >= percentile_ns(latency, percentile))
    noise = noise_ms(books, members, wanted)
    total = {cause: float((tail.own_ms + tail.propagated_ms)[order.index(cause)]) for cause in wanted}
    return {cause: _raised(floor, noise.get(cause, 0.0), total.get(cause, 0.0)) for cause, floor in floors.items()}


def _raised(floor: float, noise: float, total: float) -> float:
    """The floor plus the noise; less if the noise is a minor part of the cause.

    :param total: the cause's milliseconds, noise included.
    """
    if noise < _MINOR * total:
        return min(floor + noise, floor / (1.0 - noise / total))
    return floor + noise


def noise_ms(books: LedgerContext, members: Bools, causes: Sequence[str]) -> dict[str, float]:
    """By cause, the mean cost of its small disturbances to the tail's requests, in milliseconds.

    Counts time on their own path, and the reduction of their waits when the queue is replayed without them.

    :param members: ``(n,)`` the tail, as rows of the ledger.
    """
    ledger, line = books.ledger, books.line
    chosen = [ledger.causes.index(cause) for cause in causes]
    if not chosen or not members.any():
        return {}
    typical = float(line.workers.reference[min(1, len(line.workers.reference) - 1)]) or float(ledger.reference_ns)
    limit = SMALL * max(typical, 1.0)
    apart = _apart(line, chosen, limit)
    columns = len(ledger.causes)
    scale = np.ones((1 + len(chosen), columns + len(chosen)))
    for row in range(len(chosen)):
        scale[1 + row, columns + row] = 0.0
    waits = waits_at(apart, scale)[:, books.ok][:, members]
    own = ledger.own_ns[chosen][:, members]
    own = np.where(own <= limit, own, 0)
    costs = own.mean(axis=1) + (waits[0] - waits[1:]).mean(axis=1)
    return {cause: max(float(cost), 0.0) / 1e6 for cause, cost in zip(causes, costs, strict=True)}


def _apart(line: Line, chosen: list[int], limit: float) -> Line:
    """The line with the small entries of some columns moved to separate columns at the end."""
    batch, prepare = line.batch_extra.copy(), line.prepare_extra.copy()
    small: dict[str, list[Floats]] = {"batch": [], "prepare": []}
    for k in chosen:
        for name, extra in (("batch", batch), ("prepare", prepare)):
            few = np.where(extra[:, k] <= limit, extra[:, k], 0.0)
            extra[:, k] -= few
            small[name].append(few)
    return replace(
        line,
        batch_extra=np.column_stack([batch, *small["batch"]]),
        prepare_extra=np.column_stack([prepare, *small["prepare"]]),
    )
