"""Waits for a backlog from before a cut, in a record that is cut while its service is busy.

The replay of a chunk begins with an empty queue. Waits that it does not reproduce are waits for the backlog at the
cut, which has the same causes as the waits of the last requests before the cut.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.results.diagnosis import Ledger

#: Causes whose own part is a wait in the queue.
_WAITS = ("traffic.burst", "traffic.overload", "traffic.priority")
#: Number of the last requests before a cut whose waits represent the backlog.
_LAST = 256


def wait_shares(ledger: Ledger) -> Floats:
    """``(K,)``: shares of the causes in the waits of a chunk's last requests; zeros if none waited."""
    waits = ledger.propagated_ns[:, -_LAST:].sum(axis=1).astype(np.float64)
    for cause in _WAITS:
        k = ledger.causes.index(cause)
        waits[k] += float(ledger.own_ns[k, -_LAST:].sum())
    waits = np.maximum(waits, 0.0)
    total = float(waits.sum())
    return np.asarray(waits / total if total > 0 else waits, dtype=np.float64)


def carry_over(ledger: Ledger, closure_ns: Ints, before_idle: Bools, shares: Floats) -> Ledger:
    """Divide waits for the backlog at a cut among its causes; every sum stays exact.

    :param closure_ns: ``(n,)`` wait that the chunk's replay does not reproduce, so far in ``unexplained``.
    :param before_idle: ``(n,)`` requests that the backlog can have delayed.
    :param shares: ``(K,)`` of the backlog by cause; if all are zero, the ledger is unchanged.
    """
    if not before_idle.any() or not shares.any():
        return ledger
    own, propagated = ledger.own_ns.copy(), ledger.propagated_ns.copy()
    waited = np.where(before_idle, np.maximum(closure_ns, 0), 0)
    parts = np.floor(waited[None] * shares[:, None]).astype(np.int64)
    parts[int(np.argmax(shares))] += waited - parts.sum(axis=0)
    last = len(ledger.causes) - 1
    own[last] -= waited
    for k, cause in enumerate(ledger.causes):
        if cause in _WAITS or k == last:
            own[k] += parts[k]
        else:
            propagated[k] += parts[k]
    return replace(ledger, own_ns=own, propagated_ns=propagated)


def rebased(ledger: Ledger, reference_ns: int) -> Ledger:
    """A chunk's ledger relative to the run's reference; the difference goes to ``unexplained``."""
    if ledger.reference_ns == reference_ns:
        return ledger
    own = ledger.own_ns.copy()
    own[-1] += ledger.reference_ns - reference_ns
    return replace(ledger, own_ns=own, reference_ns=reference_ns)
