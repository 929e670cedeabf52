"""``python.gil``: waits for the interpreter lock while another thread of the process ran."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import counted, from_ns, percent
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, median_and_p99, reads
from latfix.profilers.causes.host.core_takers import BACKGROUND
from latfix.profilers.causes.python.gil_waits import PROCESS_CPU, held_ns, one_wakeup_ns, service_threads
from latfix.profilers.causes.service_waits import beyond_usual
from latfix.profilers.evidence.outside.service_process import CPU, INTERPRETER
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.probes.gil_probe import PERIOD_S, USUAL_NS, WAIT_SERIES

#: Least share of the waits.
_SHOWN = 0.1
_ROLES = {"latfix-prepare": "a prepare thread of the service", "latfix-worker": "a worker of the service"}


def _claim(evidence: Evidence, left: Left) -> Claim:
    if not len(evidence.series(WAIT_SERIES)[0]):
        return Claim()
    units = {name: Parts(blocked=held_ns(evidence, left, name)) for name in PROCESS_CPU}
    for name in ("intake", "lag"):  # units without an account: one wake-up each
        unit = evidence.units[name]
        units[name] = Parts(blocked=np.minimum(one_wakeup_ns(evidence, unit.start, unit.end), left.blocked[name]))
    return Claim(units=units, disturbance=False)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    _, waits = evidence.series(WAIT_SERIES)
    waited = float(np.mean(waits > USUAL_NS)) if len(waits) else 0.0
    longest = from_ns(waits.max()) if len(waits) else "0 ms"
    holder = _busiest(evidence)
    return (
        f"a probe that takes the interpreter lock every {PERIOD_S * 1000:g} ms had to wait {percent(waited)} of "
        f"the time, for up to {longest}{holder}; {figures.requests} requests waited for the lock while other threads "
        f"ran; {figures.parts_and_largest}."
    )


def _busiest(evidence: Evidence) -> str:
    """A clause on the thread that was on a core more than usual during waits for the lock; empty without one.

    Its usual share counts less the more of the time the lock is held: who always computes may hold it always.
    """
    times, waits = evidence.series(WAIT_SERIES)
    contended = times[waits > USUAL_NS]
    if not len(contended):
        return ""
    free = 1.0 - len(contended) / len(times)
    found = []
    for name, series in service_threads(evidence, "cpu_ns"):
        busy, usual = (_busy_share(evidence, series, at) for at in (contended, times))
        found.append((busy - free * usual, busy, usual, name))
    more, busy, usual, name = max(found, default=(0.0, 0.0, 0.0, ""))
    if more <= 0:
        return ""
    shown = next((role for prefix, role in _ROLES.items() if name.startswith(prefix)), f"thread {name!r}")
    return f", and {shown} used {percent(busy)} of a core around those times ({percent(usual)} in the whole run)"


def _busy_share(evidence: Evidence, series: str, at: Ints) -> float:
    """Share of a core that a thread used in the sampling steps around the times ``at``."""
    times, values = evidence.series(series)
    if len(times) < 2:
        return 0.0
    steps = np.diff(times)
    used = np.clip(np.diff(values), 0, None) / np.maximum(steps, 1)
    where = np.searchsorted(times, at, side="right") - 1
    where = where[(where >= 0) & (where < len(steps))]
    return float(np.mean(used[where])) if len(where) else 0.0


def _outside(evidence: Evidence, left: Left) -> Claim:
    """Waits of the service's threads for the interpreter lock, divided among the requests there.

    Not those that any process with so many requests, or without a core, would have.
    """
    waited = np.maximum(evidence.locks.python - evidence.shared.known_ns, 0)
    return beyond_usual(evidence, left, waited, "python")


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    waited, kept = evidence.locks.python[evidence.ok], evidence.locks.kept
    stopped = (
        f"; {counted(len(kept), 'time')} one thread kept it while it computed, for up to {from_ns(kept.longest_ns)}, "
        "and all requests stood still"
        if len(kept)
        else ""
    )
    return (
        f"threads of the service waited for the interpreter lock while others ran Python, {median_and_p99(waited)} "
        f"per request{stopped}{_background(evidence)}; {figures.parts}."
    )


def _background(evidence: Evidence) -> str:
    """A clause on threads that serve no request, if they ran for a noticeable part of these waits."""
    at, _ = evidence.series(INTERPRETER)
    ran = [evidence.series(name)[0] for name in evidence.threads.background]
    share = float(np.mean(np.isin(at, np.concatenate(ran)))) if ran and len(at) else 0.0
    return f"; {BACKGROUND}, ran for {percent(share)} of that time" if share >= _SHOWN else ""


CAUSE = Cause(
    id="python.gil",
    fixes=("fuse.cudagraph",),  # on a GPU: one call instead of one per operator, between which others take the lock
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
    outside_needs=reads(CPU),
)
