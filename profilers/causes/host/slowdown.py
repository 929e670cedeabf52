"""``host.slowdown``: on-CPU for longer than the same work takes: frequency, caches, memory bandwidth."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Bools, Floats
from latfix.formatting import from_ns, milliseconds, share
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.code_lines.slow_lines import main_line
from latfix.profilers.evidence.units import Evidence, Unit
from latfix.run_record.schema import PACE

#: Units that run the adapter's code alone, without the model.
_OWN_CODE = ("prepare", "finish")
#: A unit is slow if it was on-CPU for longer than expected by this share.
_SLOW = 0.25
#: Readings of the pace during slow units, and during others, that a mean takes.
_FEWEST = 5
#: The machine is slower then, or as fast, if the pace differs by more, or less, than this share.
_DIFFERS = 0.05
#: The figure of a run that :func:`_where` returns.
_WHERE = "slowdown.where"


def _claim(evidence: Evidence, left: Left) -> Claim:
    # On a device, a thread's counters do not show what it did.
    names = [name for name in (*_OWN_CODE, "compute") if name != "compute" or not evidence.setup.on_device]
    excess = {name: left.cpu_excess(name) for name in names}
    # Waits behind a pause grow with its square.
    evidence.norms.of(_WHERE, lambda: max(names, key=lambda name: float((excess[name].astype(float) ** 2).sum())))
    return Claim(units={name: Parts(cpu=excess[name]) for name in names}, disturbance=False)


def _where(evidence: Evidence) -> str:
    """The kind of unit that was slow, of those that a run's first claim found."""
    return evidence.norms.of(_WHERE, lambda: "compute")


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    where = _where(evidence)
    model, line = evidence.expected.models[where], _line(evidence)
    code = f", most of it in the adapter's {where}(){f', at {line}' if line else ''}" if where in _OWN_CODE else ""
    return (
        f"{figures.requests} requests were on-CPU for longer than the same work takes elsewhere in the run, by up to "
        f"{milliseconds(figures.largest_ms)}{code}, without waiting for a core (model of {where}: R² {model.r2:.2f}, "
        f"residual {from_ns(model.residual_mad)}); {figures.parts}.{_processor(evidence)[1]}"
    )


def _slow(unit: Unit) -> Bools:
    return np.asarray(unit.cpu > (1 + _SLOW) * unit.expected_cpu)


def _own_work(evidence: Evidence) -> bool:
    """True if the adapter's own code had more to do: no fix of the model, its threads or their cores reaches it."""
    return _where(evidence) in _OWN_CODE and _processor(evidence)[0] is False


def _line(evidence: Evidence) -> str:
    """The line of the adapter's own code at which slow units were; empty without one."""
    if not _own_work(evidence):
        return ""
    unit = evidence.units[_where(evidence)]
    return main_line(evidence, _where(evidence), np.where(_slow(unit), unit.cpu - unit.expected_cpu, 0))


def _processor(evidence: Evidence) -> tuple[bool | None, str]:
    """Whether a fixed computation next to slow units was slower, too, and a sentence on it; ``None`` if unknown."""
    where, (times, took) = _where(evidence), evidence.series(PACE)
    unit = evidence.units[where]
    if not len(unit.start):
        return None, ""
    work = "these batches" if where == "compute" else f"these units of {where}"
    order = np.argsort(unit.start)
    place = order[np.maximum(np.searchsorted(unit.start[order], times, side="right") - 1, 0)]
    during = (times >= unit.start[place]) & (times < unit.end[place])
    slow = _slow(unit)[place]
    then, else_ = took[during & slow], took[during & ~slow]
    if min(len(then), len(else_)) < _FEWEST:
        return _beyond_any_pace(unit, took, work)
    longer = float(then.mean() / else_.mean()) - 1.0
    error = float(np.hypot(then.std(ddof=1) / len(then) ** 0.5, else_.std(ddof=1) / len(else_) ** 0.5) / else_.mean())
    if longer - 2 * error > _DIFFERS:
        return True, (
            f" A fixed computation next to {work} took {share(longer)} longer than next to others: the "
            "processor was slower, whatever it computed (clocks, another tenant, stolen time)."
        )
    if longer + 2 * error < _DIFFERS:
        return False, (
            f" A fixed computation next to {work} took no longer than next to others: not the processor was "
            "slower but this work (its inputs, its memory, threads that spin)."
        )
    return None, ""


def _beyond_any_pace(unit: Unit, took: Floats, work: str) -> tuple[bool | None, str]:
    """:func:`_processor` for few or short slow units, if they took longer than the slowest processor would."""
    slow = _slow(unit)
    times = float(unit.cpu[slow].sum()) / max(float(unit.expected_cpu[slow].sum()), 1.0)
    most = float(took.max() / np.median(took)) if len(took) >= _FEWEST else np.inf
    if times <= most:
        return None, ""
    return False, (
        f" A fixed computation took at most {most:.1f} times its median at any time, {work} {times:.1f} times the "
        "usual: not the processor was slower but this work."
    )


CAUSE = Cause(
    id="host.slowdown",
    fixes=(
        "host.threads",
        "locality.cores",
        "cache.embeddings",
        "warmup.resident",
        "host.routing",
        "numerics.flush_denormal",
    ),
    claim=_claim,
    sentence=_sentence,
    culprit=_line,
    treatable=lambda evidence: not _own_work(evidence),
)
