"""What a quiet run shows anyway: waits that chance makes, and the unevenness of a shared machine.

A service at a third of its capacity still queues now and then, because independent callers sometimes arrive
together: memoryless arrivals at the run's own rate and reference service say how much. That is no burst.

On any machine with neighbors the same work takes a little longer at one time than at another: the other thread of
the core is busy, an interrupt comes, a kernel thread runs for a moment. Each such disturbance is small beside the
work that it meets; a queue adds them up. What the tail owes to disturbances that are small where they happen is no
fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from latfix.arrays import Bools, Floats
from latfix.profilers.attribution.ledger import Books
from latfix.profilers.attribution.naming_rule import OF_THE_MACHINE
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.attribution.wait_attribution import Line, capacity, waits_at
from latfix.statistics.latency_summary import percentile_ns

#: From this share of capacity on, waiting is what the load does, and is to be named whatever the arrivals' law.
BUSY = 0.6
_RUNS = 40
_MOST_REQUESTS = 4_000
_UPPER = 0.975
#: Noise below this share of a cause's milliseconds is a small part of them.
_MINOR = 0.25
#: Up to this share of a typical service, a disturbance is one that any shared machine has.
SMALL = 0.6


def chance_wait_ns(line: Line, percentile: float, *, arrivals: int, span_ns: float, seed: int) -> float:
    """The mean wait of the requests at or above a percentile, under memoryless arrivals of the run's rate.

    :param arrivals: of the run, over ``span_ns`` from the first to the last.
    :returns: nanoseconds: what 39 of 40 such runs stay below. Zero where the run is busier than :data:`BUSY`.
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


def above_noise(floors: Mapping[str, float], tail: Tail, percentile: float, books: Books) -> dict[str, float]:
    """Floors with the machine's own noise added, for those of its causes that would be named without it.

    :param floors: by cause, what its interval must exceed, in milliseconds.
    :param books: of the requests that the tail was cut from, or of a sample of them.
    """
    order = list(books.ledger.causes)
    wanted = [cause for cause in OF_THE_MACHINE if tail.ci95_ms[order.index(cause), 0] > floors[cause]]
    latency = books.ledger.latency_ns
    members = np.asarray(latency >= percentile_ns(latency, percentile))
    noise = noise_ms(books, members, wanted)
    found = {cause: float((tail.own_ms + tail.propagated_ms)[order.index(cause)]) for cause in wanted}
    return {cause: _raised(floor, noise.get(cause, 0.0), found.get(cause, 0.0)) for cause, floor in floors.items()}


def _raised(floor: float, noise: float, found: float) -> float:
    """A floor above a machine's noise. Where that is a small part of what a cause owns, it shrinks with it.

    :param found: the cause's milliseconds, whose low end must exceed the floor; the noise is a part of them.
    """
    if noise < _MINOR * found:
        return min(floor + noise, floor / (1.0 - noise / found))
    return floor + noise


def noise_ms(books: Books, members: Bools, causes: Sequence[str]) -> dict[str, float]:
    """By cause, the mean over the tail's requests of what its small disturbances cost them, in milliseconds.

    On their own path, and through the queue: by how much their waits shrink where these disturbances are left out.

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
    """The line with the small entries of some columns moved to columns of their own, at the end."""
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
