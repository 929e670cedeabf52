"""A fix as the search considers it: results of its replays, and its final contribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from latfix.results.comparison import Comparison
from latfix.results.optimization import Contribution, TriedFix
from latfix.statistics.decision import RatioEstimate

#: Statistics of contributions.
KEYS = ("mean", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(TriedFix):
    """A considered fix, and the replays of the screening windows that it was judged by.

    :param comparison: without and with it; ``None`` if it was not replayed.
    :param pairs: the replays, as folders of the optimization's: without and with it.
    """

    comparison: Comparison | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    def tried(self) -> TriedFix:
        """The entry of ``steps`` in ``optimization.json``."""
        known = {one.name: getattr(self, one.name) for one in fields(TriedFix)}
        if (compared := self.comparison) is not None:
            known |= {"ratio": compared.ratio, "p99_ms": compared.after.latency_ms["p99"]}
            if self.predicted is not None:
                known["predicted_p99_ms"] = compared.before.latency_ms["p99"] * self.predicted.ratio["p99"]
        return TriedFix(**known)


#: By fix and statistic: mean, least and most of the logarithm of its effect, over the orders of adding fixes.
Shares = Mapping[str, Mapping[str, tuple[float, float, float]]]


def ablation(
    kept: Sequence[Step],
    final: Comparison | None,
    shares: Shares,
    adds: Mapping[str, Mapping[str, RatioEstimate]],
) -> tuple[Contribution, ...]:
    """Each kept fix's contribution, the largest first; together they lead from the first settings to the last.

    Only the final replay determines what the fixes gain together. The forecast divides that among them. Fixes that
    it cannot simulate are one entry together, and so are all without a forecast. An interval covers the orders in
    which fixes may be added, and the final ratio's own.

    :param shares: of the predicted ratio; empty without a forecast.
    :param adds: by fix, its measured effect in addition to all others.
    """
    if final is None or not kept:
        return ()
    simulated = [step for step in kept if step.fix in shares]
    simulated.sort(key=lambda step: shares[step.fix]["p99"][0])
    unknown = tuple(step.fix for step in kept if step.fix not in shares)
    scale = {key: _scale(final, [shares[step.fix][key][0] for step in simulated], key) for key in KEYS}
    entries: list[Contribution] = []
    now = {key: final.before.latency_ms[key] for key in KEYS}
    for step in simulated:
        parts = {key: shares[step.fix][key] for key in KEYS}
        ratio = {key: _shared(final.ratio[key], parts[key], 1.0 if unknown else scale[key]) for key in KEYS}
        then = {key: now[key] * ratio[key].value for key in KEYS}
        predicted = {key: math.exp(parts[key][0]) for key in KEYS}
        seen = {step.fix: adds[step.fix]} if step.fix in adds else None
        entries.append(
            Contribution(fixes=(step.fix,), before_ms=now, after_ms=then, ratio=ratio, adds=seen, predicted=predicted)
        )
        now = then
    if unknown or not simulated:
        after = {key: final.after.latency_ms[key] for key in KEYS}
        rest = {fix: adds[fix] for fix in unknown if fix in adds}
        entries.append(Contribution(fixes=unknown, before_ms=now, after_ms=after, adds=rest or None))
    return tuple(entries)


def _scale(final: Comparison, parts: Sequence[float], key: str) -> float:
    """The factor that scales the predicted parts to the measured ratio."""
    measured, predicted = math.log(max(final.ratio[key].value, 1e-9)), sum(parts)
    return measured / predicted if predicted * measured > 0 else 1.0


def _shared(whole: RatioEstimate, part: tuple[float, float, float], scale: float) -> RatioEstimate:
    """A part of a ratio; its ends cover the orders, widened by its share of the whole's interval."""
    value, ends = scale * part[0], sorted((scale * part[1], scale * part[2]))
    total = math.log(max(whole.value, 1e-9))
    share = min(abs(value / total), 1.0) if total else 0.0
    below, above = (share * (math.log(end) - total) for end in (whole.lo, whole.hi))
    return RatioEstimate(
        value=math.exp(value),
        lo=math.exp(ends[0] + below),
        hi=math.exp(ends[1] + above),
        rounds=whole.rounds,
        lost=whole.lost,
    )
