"""What a plan changes, how far it is from the limit, and the configurations that it was chosen from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from latfix.formatting import NONE, finite, interval, key_label, milliseconds, ratio, shown, significant, speed_words
from latfix.reports.comparison_rows import Ratio, Share, ratio_of, shares_of
from latfix.reports.vocabulary import STEP_STATUS, Severity
from latfix.results.optimization import Optimization

#: Kept fixes that are told as the reason.
_TOLD = 3
AS_IT_IS = "as it is"
_OUT = frozenset({"rejected", "not_effective"})


def plan_is_empty(found: Optimization) -> bool:
    """True if the plan changes nothing."""
    if found.changes is not None:
        return not found.changes
    return not any(step.status == "kept" for step in found.steps)


def setting_rows(found: Optimization, first: Mapping[str, Any] | None = None) -> list[tuple[str, str, str]]:
    """Settings that the plan changes: name, value before, value in the plan.

    :param first: settings before, for documents that do not have them.
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
    return shown(value, 400) if not isinstance(value, str) else value or "none"


def kept_words(found: Optimization) -> str:
    """The kept fixes with what each gave, the largest first; empty where none was kept."""
    if plan_is_empty(found):
        return ""
    told = [share for share in shares_of(found.ablation, "p99") if share.ratio is not None and share.ratio.value]
    if not told:
        return ", ".join(step.fix for step in found.steps if step.status == "kept")
    told.sort(key=lambda share: share.ratio.value if share.ratio is not None and share.ratio.value else 1.0)
    listed = ", ".join(f"{share.name} ({_gave(share)})" for share in told[:_TOLD])
    more = len(told) - _TOLD
    return listed + (f" and {more} more" if more > 0 else "")


def _gave(share: Share) -> str:
    words = speed_words(share.ratio.value if share.ratio else None)
    seen = [speed_words(each.value) for each in share.adds.values() if each.value is not None]
    return f"{words}; beside the others {seen[0]}, replayed" if seen else words


def floor_words(found: Optimization) -> str:
    """How far p99 is from what the model alone takes, and what more would need; empty where that is not known."""
    floor, key = finite(found.floor_ms.get("p99")), "p99"
    reached = finite(found.after.latency_ms.get(key))
    if floor is None or reached is None or floor <= 0:
        return ""
    limit = (
        f"{milliseconds(floor)} is what the fastest accurate way to run this model takes at {key} in an empty queue"
    )
    if reached < floor * 0.9:
        return (
            f"reached: {milliseconds(floor)} was foretold for the fastest accurate way to run this model at {key} "
            "in an empty queue, and it is less; still less takes a faster machine or shorter inputs"
        )
    if reached <= floor * 1.1:
        return f"reached: {limit} (foretold); less takes a faster machine or shorter inputs"
    times = significant(reached / floor, 2)
    return (
        f"{limit} (foretold); {milliseconds(reached)} is {times} times that, the rest is waiting: "
        "more cores or replicas, or fewer requests at once; below it, a faster machine or shorter inputs"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSeen:
    """The best configuration that did not make it into the plan."""

    fixes: tuple[str, ...]
    words: str


def best_seen(found: Optimization) -> BestSeen | None:
    """The configuration with the least ratio of what is judged, replayed ones first; ``None`` for none below 1."""
    key, best = found.judged, None
    for row in front_rows(found):
        step = row.ratio if row.is_replayed else Ratio(value=row.predicted, ci95=None)
        if not row.fixes or row.status in _OUT or step.value is None or step.value >= 1:
            continue
        place = (not row.is_replayed, step.value)
        if best is None or place < best[0]:
            how = "in replays of the search" if row.is_replayed else "foretold, not replayed"
            words = f"{' + '.join(row.fixes)}: {key_label(key)} {speed_words(step.value)} ({how})"
            best = (place, BestSeen(fixes=row.fixes, words=words))
    return None if best is None else best[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontRow:
    """One configuration that was measured, or foretold: accuracy × latency × throughput.

    :param fixes: none for the service as it is.
    :param ratio: of what is judged, over the service as it is: the final replay's for what the search ended with; for
        others that of the search's slow stretches, without an interval where it is a product of several.
    :param accuracy: ``None`` where nothing in it changes answers, or it was not measured.
    :param best: replayed, and no other that was is at least as good in all three, and better in one.
    """

    fixes: tuple[str, ...]
    status: str
    ratio: Ratio
    predicted: float | None
    accuracy: float | None
    throughput_rps: float | None
    compute: float | None = None
    best: bool = False

    @property
    def is_replayed(self) -> bool:
        """Its latency was measured, not foretold."""
        return self.ratio.value is not None

    @property
    def name(self) -> str:
        """``batch.size + quantize.bf16``."""
        return " + ".join(self.fixes) or AS_IT_IS

    @property
    def words(self) -> tuple[str, Severity]:
        """Its status for people."""
        return (
            ("foretold", "calm") if self.status == "foretold" else STEP_STATUS.get(self.status, (self.status, "warn"))
        )

    def cells(self) -> list[str]:
        """Ratio measured with its interval, foretold, accuracy, throughput, compute."""
        return [
            "" if self.ratio.value is None else ratio(self.ratio.value, "×"),
            "" if self.ratio.ci95 is None else interval(self.ratio.ci95),
            "" if self.predicted is None else ratio(self.predicted, "×"),
            NONE if self.accuracy is None else significant(self.accuracy, 4),
            "" if self.throughput_rps is None else f"{significant(self.throughput_rps)}/s",
            "" if self.compute is None else ratio(self.compute, "×"),
        ]


def front_rows(found: Optimization) -> list[FrontRow]:
    """The service as it is, and every configuration that was looked at closely, the fastest first.

    Of those that were replayed, the ones are marked of which none is as good in accuracy, latency and throughput
    together. A forecast is no rival of a proof: nobody knows what it costs in accuracy.
    """
    rows = list(_candidates(found))
    if not rows:
        return []
    rows.sort(key=_place)
    first = FrontRow(
        fixes=(),
        status=AS_IT_IS,
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
    """Each was compared with what stood then: the ratios of those kept before it are part of its own."""
    shown = [each for each in found.candidates if each.fixes]
    last = max((place for place, each in enumerate(shown) if each.status == "kept"), default=None)
    standing = 1.0
    for place, each in enumerate(shown):
        proved = place == last and found.rounds > 0
        own = ratio_of(each.replayed.get(found.judged))
        if own.value is not None and standing != 1.0:
            own = Ratio(value=standing * own.value, ci95=None)
        if each.status == "kept" and own.value is not None:
            standing = own.value
        yield FrontRow(
            fixes=each.fixes,
            status=each.status,
            ratio=ratio_of(found.ratio.get(found.judged)) if proved else own,
            predicted=finite(each.predicted.get(found.judged)),
            accuracy=finite(found.after.accuracy if proved else each.accuracy),
            throughput_rps=finite(found.after.throughput_rps if proved else each.throughput_rps),
            compute=finite(each.compute),
        )


def _place(row: FrontRow) -> tuple[bool, float]:
    """Those that were replayed first, by what was measured; the others by what was foretold."""
    value = row.ratio.value if row.ratio.value is not None else row.predicted
    return not row.is_replayed, float("inf") if value is None else value


def _beats(one: FrontRow, other: FrontRow, first: FrontRow) -> bool:
    """Whether a replayed configuration is as good in all and better in one: latency, accuracy, time of compute.

    An accuracy that was not measured is that of the service as it is, and compute bounds the throughput.
    """
    points = [
        (row.ratio.value or 0.0, -_known(row.accuracy, first.accuracy), _known(row.compute, 1.0))
        for row in (one, other)
    ]
    return points[0] != points[1] and all(a <= b for a, b in zip(*points, strict=True))


def _known(value: float | None, otherwise: float | None) -> float:
    return value if value is not None else otherwise or 0.0
