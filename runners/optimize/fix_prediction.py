"""What a fix is predicted to do, before it is replayed: the forecast with its settings, its causes, its compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfix.profilers.forecast.settings_forecast import Forecast, Serving, removable
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import Prediction
from latfix.runners.fixes import Fix
from latfix.settings import RunnerSettings

#: A simulation that misses what was measured by more than this predicts nothing.
WORST_ERROR = 0.5
#: What predictions are made of, beside the objective's percentile.
KEYS = ("mean", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A service as the forecast knows it: its settings, the causes that are gone, how compute has changed."""

    settings: RunnerSettings
    removed: frozenset[str] = frozenset()
    compute: tuple[float, float] = (0.0, 1.0)

    def with_fix(self, fix: Fix, change: Mapping[str, Any], compute: tuple[float, float] | None = None) -> Standing:
        """With one fix more.

        :param compute: as measured from this standing; the fix's first guess where it was not.
        """
        offset, slope = (0.0, fix.compute) if compute is None else compute
        return Standing(
            settings=self.settings.with_overrides(change),
            removed=self.removed | removable(fix.removes),
            compute=(offset + slope * self.compute[0], slope * self.compute[1]),
        )

    @property
    def serving(self) -> Serving:
        """For the forecast."""
        settings = self.settings
        return Serving(
            max_batch=settings.max_batch_size,
            window_ns=settings.batch_window_ms * 1e6,
            workers=settings.workers,
            prepare_threads=settings.prepare_threads,
            by_length=settings.batch_order == "length",
            compute=self.compute,
            without=self.removed,
        )


class Predictor:
    """Predictions on the requests of a baseline.

    :param forecast: ``None`` where the baseline is too small for one; then nothing is predicted.
    """

    def __init__(self, forecast: Forecast | None) -> None:
        usable = forecast is not None and forecast.error <= WORST_ERROR
        self.forecast = forecast if usable else None

    def predict(self, now: Standing, then: Standing, within: Sequence[tuple[float, float]] = ()) -> Prediction | None:
        """What changes from one standing to another; ``None`` where nothing can be foretold.

        :param within: stretches of the schedule that count, in nanoseconds; all of it where there are none.
        """
        if self.forecast is None:
            return None
        before = self.forecast.latencies(now.serving, within)
        after = self.forecast.latencies(then.serving, within)
        return Prediction(ratio=self.forecast.ratios(before, after), compute=then.compute)

    def promise(
        self,
        now: Standing,
        fix: Fix,
        change: Mapping[str, Any],
        diagnosis: Diagnosis,
        compute: tuple[float, float] | None = None,
    ) -> float:
        """The share of the objective's percentile that a fix may take away, to order fixes by.

        Where the forecast knows nothing of what the fix acts on, the share of the tail that its causes own, times
        how much of theirs it has been seen to remove.

        :param compute: what it was measured to do to compute; ``None`` takes what it did elsewhere.
        """
        owned = sum(max(cause.tail_share, 0.0) for cause in diagnosis.causes if cause.cause in fix.treats)
        excess = diagnosis.excess_ms / max(diagnosis.excess_ms + diagnosis.reference_ms, 1e-9)
        guess = fix.relief * min(owned, 1.0) * max(min(excess, 1.0), 0.0)
        then = now.with_fix(fix, change, compute)
        if self.forecast is None or then.serving == now.serving:
            return guess
        predicted = self.predict(now, then)
        assert predicted is not None, "there is a forecast"
        key = diagnosis_key(diagnosis)
        return max(1.0 - predicted.ratio[key], (1.0 - predicted.ratio["mean"]) / 2)


def diagnosis_key(diagnosis: Diagnosis) -> str:
    """The statistic of :data:`KEYS` nearest to the percentile that the diagnosis is of."""
    return "p99" if diagnosis.percentile > 97 else "p95"
