"""Causes of a service behind an address: connections, and waits of its threads.

``network.connect``: a connection was opened for the request, including TCP and TLS handshakes.
``network.delayed_ack``: the end of an answer waited until its beginning was acknowledged, which the kernel delays.
``service.lock``: requests waited for a lock that another thread held.
``service.loop``: a call blocked the event loop, and the service answered no request.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import counted, from_ns, percent
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, in_units, median_and_p99, reads
from latfix.profilers.evidence.outside.service_process import CPU
from latfix.profilers.evidence.run_baselines import whole_median
from latfix.profilers.evidence.units import OUTSIDE_UNITS, Evidence

#: A client repeats an unanswered request for a connection after a second (RFC 6298).
_AGAIN_NS = (1_000_000_000, 1_100_000_000)


def _connecting(evidence: Evidence) -> Ints:
    rows = evidence.rows
    return np.asarray(np.maximum(rows["prepare_ns"] - rows["send_ns"], 0), dtype=np.int64)


def _outside_connect(evidence: Evidence, left: Left) -> Claim:
    connecting = np.minimum(_connecting(evidence), left.blocked["prepare"])
    return Claim(units={"prepare": Parts(blocked=connecting)}, disturbance=False)


def _connect_sentence(evidence: Evidence, figures: TailFigures) -> str:
    fresh = evidence.ok & (evidence.rows["new_connection"] > 0)
    connecting = _connecting(evidence)[fresh]
    took = median_and_p99(connecting) if fresh.any() else "no time"
    again = np.count_nonzero((connecting > _AGAIN_NS[0]) & (connecting < _AGAIN_NS[1]))
    dropped = (
        f"; {again} of them took about 1 s, after which a client asks again if the server's queue of new connections "
        "was full (its listen backlog) or the packet was lost"
        if again
        else ""
    )
    return f"{np.count_nonzero(fresh)} requests opened a connection, which took {took}{dropped}; {figures.parts}."


def _outside_ack(evidence: Evidence, left: Left) -> Claim:
    waited = np.where(evidence.late_acks.get("finish", False), left.blocked["finish"], 0)
    return Claim(units={"finish": Parts(blocked=waited)})


def _ack_sentence(evidence: Evidence, figures: TailFigures) -> str:
    late = evidence.late_acks["finish"]
    return (
        f"{percent(late.sum() / evidence.ok.sum())} of the answers ended 40 to 45 ms after their first byte, hardly "
        "any slightly earlier: typical of a message that is written in two pieces without TCP_NODELAY, whose second "
        f"waits for an acknowledgment that the client's kernel delays; {figures.parts}."
    )


def beyond_usual(evidence: Evidence, left: Left, waited: Ints, name: str) -> Claim:
    """Waits of requests beyond the median, at most the excess of their service time; first until the first byte."""
    chosen = waited[evidence.ok]
    beyond = np.maximum(waited - evidence.norms.of(f"waits.{name}", partial(whole_median, chosen)), 0)
    compute = np.minimum(evidence.at_units("compute", beyond), left.cpu_excess("compute"))
    later = np.maximum(beyond - evidence.of_batch(compute), 0)
    return Claim(units={"compute": Parts(cpu=compute), "finish": Parts(excess=later)})


def _outside_lock(evidence: Evidence, left: Left) -> Claim:
    return beyond_usual(evidence, left, evidence.locks.lock, "lock")


def _lock_sentence(evidence: Evidence, figures: TailFigures) -> str:
    waits = evidence.locks
    where = f", up to {waits.at_one} of them at one address" if waits.at_one > 1 else ""
    return (
        f"threads of the service waited for a lock while other requests were there{where}; {waits.holder}; a request "
        f"waited {median_and_p99(waits.lock[evidence.ok])}; {figures.parts}."
    )


@in_units(*OUTSIDE_UNITS)
def _outside_loop(evidence: Evidence, left: Left, name: str) -> Parts:
    """All requests wait while it waits in a call. While it computes, those that come meanwhile.

    The request for which it computes is not among them, if it is known.
    """
    held, busy, (start, end) = evidence.locks.held, evidence.locks.busy, evidence.units[name].span
    own = evidence.worked(name) if evidence.threads.ran else np.zeros(len(start), np.int64)
    came = busy.covered(start, start + 1) > 0
    blocked = held.covered(start, end) + np.where(came, busy.covered(start, end), 0) - own
    other = evidence.standstills.prefill.covered(start, end) + evidence.not_waited(name)
    claimed = np.rint(np.maximum(blocked - other, 0)).astype(np.int64)
    return Parts(cpu=np.minimum(claimed, np.maximum(left.cpu_excess(name) - own, 0)))


def _loop_sentence(evidence: Evidence, figures: TailFigures) -> str:
    held, busy = evidence.locks.held, evidence.locks.busy
    if not len(held) + len(busy):
        return f"{figures.parts}."
    longest = from_ns(max(held.longest_ns, busy.longest_ns))
    return (
        f"{counted(len(held) + len(busy), 'time')} the service answered no request, for up to {longest}, "
        f"because its event loop did not return to waiting for events; {evidence.locks.caller}; {figures.parts}."
    )


CONNECT = Cause(id="network.connect", sentence=_connect_sentence, outside=_outside_connect)
DELAYED_ACK = Cause(id="network.delayed_ack", sentence=_ack_sentence, outside=_outside_ack)
LOCK = Cause(id="service.lock", sentence=_lock_sentence, outside=_outside_lock, outside_needs=reads(CPU))
LOOP = Cause(id="service.loop", sentence=_loop_sentence, outside=_outside_loop, outside_needs=reads(CPU))
