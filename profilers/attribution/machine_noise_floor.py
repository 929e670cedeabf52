"""What the unevenness of a shared machine does to the tail, so that it is not taken for a fault.

On any machine with neighbors the same work takes a little longer at one time than at another: the other thread of
the core is busy, an interrupt comes, a kernel thread runs for a moment. Each such disturbance is small beside the
work that it meets; a queue adds them up. What the tail owes to disturbances that are small where they happen is what
an unperturbed run shows, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from latfix.profilers.attribution.ledger import Books
from latfix.profilers.attribution.naming_rule import OF_THE_MACHINE
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.attribution.wait_attribution import Line, waits_at
from latfix.statistics.latency_summary import percentile_ns

#: Up to this share of a typical service, a disturbance is one that any shared machine has.
SMALL = 0.6

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


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
    return {cause: floor + noise.get(cause, 0.0) for cause, floor in floors.items()}


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
