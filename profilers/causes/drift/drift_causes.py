"""``drift.*``: slower with age. One claim, made by the drift whose series the growth follows."""

from __future__ import annotations

from functools import partial

from latfix.formatting import from_ns, significant
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.causes.drift.correlates import Companion, origin_of
from latfix.profilers.causes.drift.growth import Growth, find_growths
from latfix.profilers.evidence.units import Evidence
from latfix.stages import stage_label


def _claim(cause_id: str, evidence: Evidence, left: Left) -> Claim:
    growths = find_growths(evidence, left)
    if not growths or evidence.norms.of("drift.origin", partial(origin_of, evidence, growths))[0] != cause_id:
        return Claim()
    units: dict[str, Parts] = {}
    for growth in growths:
        known = units.get(growth.unit, Parts())
        units[growth.unit] = Parts(
            cpu=growth.claim if growth.part == "cpu" else known.cpu,
            blocked=growth.claim if growth.part == "blocked" else known.blocked,
        )
    return Claim(units=units)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    growths = find_growths(evidence)
    if not growths:
        return f"the same inputs took longer as the service aged; {figures.parts}."
    largest = max(growths, key=lambda growth: float(growth.rise.level[-1]))
    rise = _rise_words(largest, outside=evidence.setup.outside)
    return f"{rise}; {_companion_words(*origin_of(evidence, growths))}; {figures.parts}."


def _rise_words(growth: Growth, *, outside: bool) -> str:
    stage = stage_label(growth.unit, outside=outside)
    subject = stage if growth.part == "cpu" else f"blocked time in {stage}"
    first, last = (from_ns(figure) for figure in growth.took)
    rise = growth.rise
    if rise.step is not None:
        more = from_ns(float(rise.level[-1]))
        return f"{subject} took {first} until {rise.step:,.1f} s and {more} more from then on, for the same inputs"
    slope = growth.slope
    value, low, high = (significant(ns / 1e6) for ns in (slope.value, slope.low, slope.high))
    return (
        f"{subject} took {first} in the first quarter and {last} in the last for the same inputs "
        f"(+{value} ms a second [{low}, {high}])"
    )


def _companion_words(cause: str, companions: tuple[Companion, ...]) -> str:
    if not companions:
        return "no recorded series grew with it"
    words = " and ".join(companion.words() for companion in companions)
    if cause == "drift.unknown":
        return f"{words} at the same time; which of these it follows is unclear"
    return f"{words} at the same time"


def _drift(cause_id: str) -> Cause:
    claim = partial(_claim, cause_id)
    return Cause(id=cause_id, claim=claim, sentence=_sentence, outside=claim)


MEMORY = _drift("drift.memory")
CACHE = _drift("drift.cache")
SESSIONS = _drift("drift.sessions")
UNKNOWN = _drift("drift.unknown")
