"""One fix that was considered, what its comparison showed, and the rule that decides about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from latfix.results.comparison import Comparison


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

    def to_json(self) -> dict[str, Any]:
        """The entry of ``steps`` in ``optimization.json``."""
        compared = self.comparison
        ratio = compared.ratio if compared is not None else {}
        return {
            "fix": self.fix,
            "title": self.title,
            "risk": self.risk,
            "status": self.status,
            "reason": self.reason,
            "ratio": {key: estimate.to_json() for key, estimate in ratio.items()},
            "predicted_p99_ms": self.predicted_p99_ms,
            "p99_ms": compared.after.latency_ms["p99"] if compared is not None else None,
            "predicted": None if self.prediction is None else self.prediction.to_json(),
            "adds": None if self.adds is None else {key: each.to_json() for key, each in self.adds.ratio.items()},
            "accuracy": self.accuracy,
            "scored": dict(self.scored),
            "verified": self.verified,
            "together": list(self.together),
            "settings": self.settings,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Ratios over what was there without the fix, by statistic; ``compute`` is the change that they rest on."""

    ratio: Mapping[str, float]
    compute: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Of a step in ``optimization.json``."""
        return {"ratio": dict(self.ratio), "compute": None if self.compute is None else list(self.compute)}
