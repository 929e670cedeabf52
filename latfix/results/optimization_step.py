"""A fix as the search considers it: what its replays showed, and what it contributed in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from latfix.results.comparison import Comparison
from latfix.results.optimization import Contribution, Prediction, TriedFix

#: Statistics that contributions are given for.
KEYS = ("mean", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One fix that was considered, and what became of it.

    :param title: what the fix does, in a few words; ``risk`` what it may cost.
    :param status: of the contract: kept, rejected, no_gain, not_effective, undecided, skipped.
    :param comparison: without and with it, on the screening windows.
    :param together: ids of the fixes that were tried in the same replays; empty where it was tried alone.
    :param prediction: what the forecast said before the replay, on the windows.
    :param accuracy: with it.
    :param scored: everything that measuring the accuracy told, where it was measured.
    :param verified: the evidence that it took effect.
    :param adds: with all kept fixes over all but this one, on the windows: what it adds to the others in the end.
    :param pairs: the replays that it was judged by, as folders of the optimization's: without and with it.
    """

    fix: str
    status: str
    reason: str
    title: str = ""
    risk: str = ""
    comparison: Comparison | None = None
    together: tuple[str, ...] = ()
    prediction: Prediction | None = None
    accuracy: float | None = None
    scored: Mapping[str, Any] = field(default_factory=dict)
    verified: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    adds: Comparison | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def predicted_p99_ms(self) -> float | None:
        """What p99 of the windows was predicted to be with it; ``None`` where it was not replayed alone."""
        if self.prediction is None or self.comparison is None or self.together:
            return None
        return self.comparison.before.latency_ms["p99"] * self.prediction.ratio["p99"]

    def prediction_error(self, key: str) -> float | None:
        """How far the predicted ratio of a statistic was from the one that was measured, as a share of this."""
        if self.prediction is None or self.comparison is None or self.together:
            return None
        measured = self.comparison.ratio[key].value
        return abs(self.prediction.ratio[key] / measured - 1.0) if measured > 0 else None

    def tried(self) -> TriedFix:
        """The entry of ``steps`` in ``optimization.json``."""
        compared = self.comparison
        return TriedFix(
            fix=self.fix,
            title=self.title,
            risk=self.risk,
            status=self.status,
            reason=self.reason,
            ratio=compared.ratio if compared is not None else {},
            predicted_p99_ms=self.predicted_p99_ms,
            p99_ms=compared.after.latency_ms["p99"] if compared is not None else None,
            predicted=self.prediction,
            adds=None if self.adds is None else self.adds.ratio,
            accuracy=self.accuracy,
            scored=self.scored,
            verified=self.verified,
            together=self.together,
            settings=self.settings,
        )


def ablation(kept: Sequence[Step], final: Comparison | None) -> tuple[Contribution, ...]:
    """What each kept fix gave: one entry a fix, or a group that was replayed together, in order; last, the rest.

    The final replay alone says what the fixes are worth together. Each fix's ratio is from its own replays on the
    screening windows; their product does not meet the final ratio exactly, for windows are not the whole traffic
    and fixes act on one another. What is left over is an entry of its own.
    """
    if final is None:
        return ()
    entries: list[Contribution] = []
    now = {key: final.before.latency_ms[key] for key in KEYS}
    for group in _groups(kept):
        first = group[0]
        if first.comparison is None:
            continue
        ratio = {key: first.comparison.ratio[key] for key in KEYS}
        then = {key: now[key] * ratio[key].value for key in KEYS}
        predicted = None if first.prediction is None or first.together else first.prediction.ratio
        entries.append(
            Contribution(
                fixes=tuple(step.fix for step in group),
                before_ms=now,
                after_ms=then,
                ratio=ratio,
                adds={s.fix: {key: s.adds.ratio[key] for key in KEYS} for s in group if s.adds is not None} or None,
                predicted=None if predicted is None else {key: predicted[key] for key in KEYS},
            )
        )
        now = then
    if entries:
        after = {key: final.after.latency_ms[key] for key in KEYS}
        entries.append(Contribution(fixes=(), before_ms=now, after_ms=after))
    return tuple(entries)


def _groups(kept: Sequence[Step]) -> list[list[Step]]:
    """Steps that share their replays stand together."""
    groups: list[list[Step]] = []
    for step in kept:
        if step.together and groups and groups[-1][0].together == step.together:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups
