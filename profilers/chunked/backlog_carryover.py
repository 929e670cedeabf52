"""Waits that come from before a cut: a record cut while its service was busy leaves a backlog behind.

What is replayed of the second chunk begins with an empty queue. What its requests waited beyond that, they waited
for the backlog, and that was there for the reasons for which the last requests before the cut waited.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.results.diagnosis import Ledger

#: Causes whose own part is a wait in the queue.
_WAITS = ("traffic.burst", "traffic.overload", "traffic.priority")
#: The last requests before a cut, whose waits stand for the backlog.
_LAST = 256


def wait_shares(ledger: Ledger) -> Floats:
    """``(K,)``: which causes the last requests of a chunk waited for, as shares; zeros where none waited."""
    waits = ledger.propagated_ns[:, -_LAST:].sum(axis=1).astype(np.float64)
    for cause in _WAITS:
        k = ledger.causes.index(cause)
        waits[k] += float(ledger.own_ns[k, -_LAST:].sum())
    waits = np.maximum(waits, 0.0)
    total = float(waits.sum())
    return np.asarray(waits / total if total > 0 else waits, dtype=np.float64)


def carry_over(ledger: Ledger, closure_ns: Ints, before_idle: Bools, shares: Floats) -> Ledger:
    """Divide what requests waited for the backlog at a cut; every sum stays exact.

    :param closure_ns: ``(n,)`` wait that the chunk's own replay does not reproduce, now in ``unexplained``.
    :param before_idle: ``(n,)`` requests that the backlog can have kept waiting.
    :param shares: ``(K,)`` of the backlog, by cause; nothing is divided where they are zero.
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
    """A chunk's ledger counted from the run's reference; what that moves is ``unexplained``."""
    if ledger.reference_ns == reference_ns:
        return ledger
    own = ledger.own_ns.copy()
    own[-1] += ledger.reference_ns - reference_ns
    return replace(ledger, own_ns=own, reference_ns=reference_ns)
