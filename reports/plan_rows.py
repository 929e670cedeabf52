"""Phrases on a plan: its changes, its distance from the lower bound, and the configurations it was chosen from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from latfix.formatting import NONE, finite, interval, key_label, milliseconds, ratio, shown, significant, speed_words
from latfix.reports.comparison_rows import Ratio, Share, ratio_of, shares_of
from latfix.reports.vocabulary import STEP_STATUS, Severity
from latfix.results.optimization import Optimization

#: Kept fixes listed as the reason.
_LISTED = 3
BASELINE = "baseline"
_OUT = frozenset({"rejected", "not_effective"})


def plan_is_empty(found: Optimization) -> bool:
    """True if the plan changes nothing."""
    if found.changes is not None:
        return not found.changes
    return not any(step.status == "kept" for step in found.steps)


def setting_rows(found: Optimization, first: Mapping[str, Any] | None = None) -> list[tuple[str, str, str]]:
    """Settings that the plan changes: name, value before, value in the plan.

    :param first: settings before, for older documents that lack them.
    """
    changes: dict[str, tuple[Any, Any]] = dict(found.changes or {})
    if found.changes is None:
        for step in found.steps:
            if step.status == "kept":
                for key, value in step.settings.items():
                    old = (first or {}).get(key)
                    if isinstance(value, Mapping):
                        had = old if isinstance(old, Mapping) else {}
                        changes |= {f"{key}.{name}": (had.get(name), each) for name, each in value.items()}
                    else:
                        changes[key] = (old, value)
    return [(key, _value(old), _value(new)) for key, (old, new) in changes.items() if old != new]


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, str) and value.count("=") > 1:
        return ", ".join(value.split(":"))  # tunables, so that a line can end between two
    return shown(value, 400) if not isinstance(value, str) else value or "none"


def kept_words(found: Optimization) -> str:
    """The kept fixes with the effect of each on p99, or on the mean if that is judged, the largest first.

    Empty if none was kept.
    """
    if plan_is_empty(found):
        return ""
    shares = shares_of(found.ablation, "mean" if found.judged == "mean" else "p99")
    known = [(share.ratio.value, share) for share in shares if share.ratio is not None and share.ratio.value]
    if not known:
        added = {fix: _added(each) for share in shares for fix, each in share.adds.items()}
        kept = [step.fix for step in found.steps if step.status == "kept"]
        return ", ".join(fix + (f" ({words})" if (words := added.get(fix)) else "") for fix in kept)
    known.sort(key=lambda pair: pair[0])
    listed = ", ".join(f"{share.name} ({_effect(value, share)})" for value, share in known[:_LISTED])
    more = len(known) - _LISTED
    return listed + (f" and {more} more" if more > 0 else "")


def _effect(value: float, share: Share) -> str:
    words = next(filter(None, map(_added, share.adds.values())), "")
    if value >= 1:  # a predicted share: replayed was only the whole
        return words or "replayed with the others, no gain predicted for it"
    return f"{speed_words(value)}; {words}" if words else speed_words(value)


def _added(measured: Ratio) -> str:
    doubt = "" if measured.decisive else ", not for certain"
    return "" if measured.value is None else f"{speed_words(measured.value)} on top of the others{doubt}"


def floor_words(found: Optimization) -> str:
    """How far p99 is from that of the model alone, and how to get closer; empty if unknown, or less was measured."""
    last = found.before if plan_is_empty(found) else found.after
    floor, reached = finite(found.floor_ms.get("p99")), finite(last.latency_ms.get("p99"))
    if floor is None or reached is None or not 0 < floor * 0.9 <= reached:
        return ""
    bound = f"predicted p99 {milliseconds(floor)} with an empty queue and the fastest accurate form of this model"
    if reached <= floor * 1.1:
        outside = found.diagnosis is not None and found.diagnosis.verdict == "external.dependency"
        needs = "a faster dependency" if outside else "a faster machine or shorter inputs"
        return f"reached: {bound}; going lower needs {needs}"
    more = "devices" if found.device.startswith("cuda") else "cores, a GPU"
    what = "disturbances and waiting" if found.disturbed else "waiting"
    return (
        f"{bound}; {milliseconds(reached)} is {significant(reached / floor, 2)} times that, the difference is "
        f"{what}: add {more} or replicas, or reduce concurrent requests"
    )


def best_candidate(found: Optimization) -> tuple[tuple[str, ...], str] | None:
    """Fixes and words of the fastest configuration, replayed ones first; ``None`` if none is faster than before.

    A fix that went straight to the final replay may have been found without effect only there.
    """
    out = {step.fix for step in found.steps if step.status in _OUT}
    for row in front_rows(found):
        step = row.ratio if row.is_replayed else Ratio(value=row.predicted, ci95=None)
        if row.status in _OUT or set(row.fixes) <= out or step.value is None or step.value >= 1:
            continue
        how = "in replays of the search" if row.is_replayed else "predicted, not replayed"
        return row.fixes, f"{row.name}: {key_label(found.judged)} {speed_words(step.value)} ({how})"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontRow:
    """One measured or predicted configuration: accuracy × latency × throughput.

    :param fixes: empty for the baseline.
    :param ratio: of the judged figure, over the baseline: from the final replay for the configuration that the search
        ended with; for others from the search's slow stretches, without an interval if it is a product of several.
    :param predicted: for what the final replay covered for the first of these, else for the whole traffic.
    :param accuracy: ``None`` if no fix in it changes answers, or if it was not measured.
    :param best: replayed, and no other replayed one is at least as good in all three and better in one.
    :param searched: of the plan, the ratio in the search's replays if there are any: only these compare with others.
    :param is_plan: the final replay tested it, and it is the plan.
    """

    fixes: tuple[str, ...]
    status: str
    ratio: Ratio
    predicted: float | None
    accuracy: float | None
    throughput_rps: float | None
    compute: float | None = None
    best: bool = False
    searched: float | None = None
    is_plan: bool = False

    @property
    def compared(self) -> float | None:
        """The measured ratio by which it is compared with the others."""
        return self.ratio.value if self.searched is None else self.searched

    @property
    def is_replayed(self) -> bool:
        """True if its latency was measured, not only predicted."""
        return self.ratio.value is not None

    @property
    def name(self) -> str:
        """``batch.size + quantize.bf16``."""
        return " + ".join(self.fixes) or BASELINE

    @property
    def label(self) -> str:
        """The name, of the plan with a remark."""
        return self.name + (" (the plan)" if self.is_plan else "")

    @property
    def words(self) -> tuple[str, Severity]:
        """Its status in words, and the color of it."""
        known: dict[str, tuple[str, Severity]] = {**STEP_STATUS, "foretold": ("predicted", "calm")}
        return known.get(self.status, (self.status, "warn"))

    def cells(self) -> list[str]:
        """Measured ratio, its interval, predicted ratio, accuracy, throughput, compute."""
        return [
            "" if self.ratio.value is None else ratio(self.ratio.value, "×"),
            "" if self.ratio.ci95 is None else interval(self.ratio.ci95),
            "" if self.predicted is None else ratio(self.predicted, "×"),
            NONE if self.accuracy is None else significant(self.accuracy, 4),
            "" if self.throughput_rps is None else f"{significant(self.throughput_rps)}/s",
            "" if self.compute is None else ratio(self.compute, "×"),
        ]


def front_rows(found: Optimization) -> list[FrontRow]:
    """The closely examined configurations, the fastest first, and the baseline.

    A replayed one is marked best if no other replayed one beats it in accuracy, latency and throughput together.
    Predicted ones are not compared: their accuracy is unknown.
    """
    rows = list(_candidates(found))
    if not rows:
        return []
    rows.sort(key=_place)
    first = FrontRow(
        fixes=(),
        status=BASELINE,
        ratio=Ratio(value=1.0, ci95=None),
        predicted=1.0,
        accuracy=finite(found.before.accuracy),
        throughput_rps=finite(found.before.throughput_rps),
        compute=1.0,
    )
    rows.append(first)
    inside = [row for row in rows if row.is_replayed and row.status not in _OUT]
    best = [row for row in inside if not any(_beats(other, row, first) for other in inside)]
    return [replace(row, best=row in best) for row in rows]


def _candidates(found: Optimization) -> Iterator[FrontRow]:
    """Each was compared with the configuration kept before it, so the ratios of those are multiplied in."""
    shown = [each for each in found.candidates if each.fixes]
    idle = {step.fix for step in found.steps if step.status == "not_effective"}
    effective = tuple(fix for fix in found.proved if fix not in idle)
    tested = [each.fixes in (found.proved, effective) if found.proved else each.status == "kept" for each in shown]
    last = max((place for place, each in enumerate(tested) if each), default=None)
    kept = 1.0
    for place, each in enumerate(shown):
        proved = place == last and found.rounds > 0
        own = ratio_of(each.replayed.get(found.judged))
        if own.value is not None and kept != 1.0:
            own = Ratio(value=kept * own.value, ci95=None)
        if each.status == "kept" and own.value is not None:
            kept = own.value
        yield FrontRow(
            fixes=each.fixes,
            status=each.status,
            ratio=ratio_of(found.ratio.get(found.judged)) if proved else own,
            predicted=_foretold(found) if proved else finite(each.predicted.get(found.judged)),
            accuracy=finite(found.after.accuracy if proved else each.accuracy),
            throughput_rps=finite(found.after.throughput_rps if proved else each.throughput_rps),
            compute=finite(each.compute),
            searched=own.value if proved else None,
            is_plan=proved and not plan_is_empty(found),
        )


def _foretold(found: Optimization) -> float | None:
    """The predicted ratio of the plan for what the final replay covered; ``None`` if unknown."""
    errors = found.prediction_error
    error = None if errors is None else {"mean": errors.mean, "p99": errors.p99}.get(found.judged, errors.judged)
    return None if error is None else finite(error.final)


def _place(row: FrontRow) -> tuple[bool, float]:
    """Sort key: replayed ones first, by measured ratio; then the others, by predicted ratio."""
    value = row.compared if row.is_replayed else row.predicted
    return not row.is_replayed, float("inf") if value is None else value


def _beats(one: FrontRow, other: FrontRow, first: FrontRow) -> bool:
    """True if ``one`` is as good as ``other`` in latency, accuracy and compute, and better in one of them.

    An accuracy that was not measured counts as the baseline's; compute stands for throughput, which it bounds.
    """

    def point(row: FrontRow) -> tuple[float, float, float]:
        accuracy = first.accuracy if row.accuracy is None else row.accuracy
        return row.compared or 0.0, -(accuracy or 0.0), 1.0 if row.compute is None else row.compute

    return point(one) != point(other) and all(a <= b for a, b in zip(point(one), point(other), strict=True))
