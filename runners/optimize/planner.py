"""Whole configurations, simulated on the recorded requests: which is foretold to serve best.

The time of a batch is what was measured of the way the model runs (:mod:`alternatives`); the policy around it, who
shares a batch, how long it stays open, how many workers take them, is simulated. Each replay of a configuration
shows how long batches take where everything else of the service goes on beside them, and corrects that time for all
configurations that run the model the same way.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.profilers.forecast.settings_forecast import Forecast, Serving
from latfix.results.optimization import Prediction
from latfix.run_record.run_record import RunRecord
from latfix.runners.optimize.configuration import Choice, Configuration, Obstacle, compose
from latfix.settings import RunnerSettings

#: A simulation that misses what was measured by more than this predicts nothing. The p99 of some hundred requests is
#: made by the few of one moment: it may be off by more.
_WORST_ERRORS = {"mean": 0.5, "p99": 1.0}
#: Foretold gains below this are not worth a setting: forecasts do not tell smaller things.
LEAST_GAIN = 0.01
_PASSES = 3
#: Of so many fixes, all orders are looked at to share a gain among them.
_ALL_ORDERS = 4
Bounds = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be small.

    :param key: a statistic of latency, ``p99``; the mean counts half as much beside a percentile.
    """

    key: str

    def score(self, ratio: Mapping[str, float]) -> float:
        """Of ratios over the first settings; below 0 is better, the logarithm of a ratio."""
        own = math.log(max(ratio[self.key], 1e-9))
        if self.key == "mean":
            return own
        return (2 * own + math.log(max(ratio["mean"], 1e-9))) / 3


def trusted(forecast: Forecast) -> bool:
    """Whether what a forecast says of the settings that ran is near enough to believe it of others."""
    return all(forecast.error_of(key) <= worst for key, worst in _WORST_ERRORS.items())


@dataclass(slots=True)
class Planner:
    """Foretells configurations.

    :param costs: by ids of measured choices (:attr:`Configuration.measured`), how the time of batches changes.
    :param paces: by the same, how much longer batches took in replays than foretold, a figure a replay.
    :param refused: by the same, those whose answers, or effect, were not what they should be.
    """

    forecast: Forecast
    goal: Goal
    first: RunnerSettings
    obstacle: Obstacle
    costs: dict[tuple[str, ...], BatchCost | None] = field(default_factory=lambda: {(): None})
    paces: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    refused: set[tuple[str, ...]] = field(default_factory=set)
    looked_at: int = 0
    _seen: dict[tuple[Serving, tuple[tuple[float, float], ...]], dict[str, float]] = field(default_factory=dict)

    def knows(self, configuration: Configuration) -> bool:
        """Whether the way it runs the model was measured; of others nothing can be foretold."""
        return way(configuration) in self.costs

    def predict(self, configuration: Configuration, within: Bounds = ()) -> Prediction:
        """Ratios over the first settings.

        :param within: stretches of the schedule that count, in nanoseconds; all of it where there are none.
        """
        cost = self.costs[way(configuration)]
        ratio = self._ratio(self.serving(Configuration(self.first)), self.serving(configuration), within)
        return Prediction(ratio=ratio, compute=None if cost is None else (0.0, cost.typical))

    def in_hindsight(
        self, configuration: Configuration, rounds: Sequence[tuple[RunRecord, RunRecord]], within: Bounds
    ) -> dict[str, float]:
        """Ratios over the first settings with batches as quick as they were in replays of both.

        :param within: the stretch of the schedule that was replayed; all of it where there is none.
        """
        begin = within[0][0] if within else 0.0
        sides = []
        for records, made in zip(zip(*rounds, strict=True), (Configuration(self.first), configuration), strict=True):
            serving = made.serving(self.costs[way(made)])
            shown = [pace for record in records if (pace := self.forecast.pace_of(record, serving, begin)) > 0]
            sides.append(replace(serving, pace=statistics.geometric_mean(shown or [1.0])))
        return self._ratio(sides[0], sides[1], within)

    def serving(self, configuration: Configuration) -> Serving:
        """For the forecast, at the pace that replays showed of this way to run the model, or of the first one."""
        known = way(configuration)
        shown = self.paces.get(known) or self.paces.get(()) or [1.0]
        return replace(configuration.serving(self.costs[known]), pace=statistics.geometric_mean(shown))

    def score(self, configuration: Configuration) -> float:
        """What it is foretold to be worth; see :meth:`Goal.score`."""
        return math.inf if way(configuration) in self.refused else self.goal.score(self.predict(configuration).ratio)

    def best(self, measured: Sequence[Choice], numbers: Sequence[Sequence[Choice]]) -> Configuration:
        """The best that can be made of some measured choices and at most one of each group of numbers.

        A search by coordinates: one group after the other is moved until none gains. What gains nothing is left out.
        """
        chosen: dict[int, Choice] = {}
        standing = self._composed(measured, chosen)
        score = self.score(standing)
        for _ in range(_PASSES):
            before = dict(chosen)
            for place, group in enumerate(numbers):
                others = {key: choice for key, choice in chosen.items() if key != place}
                for trial in (others, *({**others, place: choice} for choice in group)):
                    made = self._composed(measured, trial)
                    told = self.score(made)
                    dropped = len(made.choices) < len(standing.choices)
                    if told < score - LEAST_GAIN or (dropped and told < score + LEAST_GAIN / 2):
                        standing, score, chosen = made, min(told, score), trial
            if chosen == before:
                break
        return standing

    def shares(self, configuration: Configuration) -> dict[str, dict[str, tuple[float, float, float]]]:
        """By fix and statistic, its share of the logarithm of the foretold ratio: mean, least and most over orders.

        What a fix gives depends on which others are there when it is added; the mean over all orders (Shapley, 1953)
        adds up to the whole. With many fixes the orders that begin with each are taken. What the forecast knows
        nothing of, it gives no share.
        """
        choices = configuration.choices
        places = range(len(choices))
        if len(choices) <= _ALL_ORDERS:
            orders = [list(order) for order in permutations(places)]
        else:
            orders = [[*places[k:], *places[:k]] for k in places]
        added: dict[str, list[dict[str, float]]] = {choice.fix.id: [] for choice in choices}
        for order in orders:
            # However they are added, those that are there stand in the configuration's own order.
            there = [sorted(order[:k]) for k in range(len(order) + 1)]
            steps = [Configuration(self.first, tuple(choices[place] for place in each)) for each in there]
            if all(way(step) in self.costs for step in steps):
                told = [self.predict(step).ratio for step in steps]
                for place, before, after in zip(order, told, told[1:], strict=False):
                    added[choices[place].fix.id].append({key: math.log(after[key] / before[key]) for key in after})
        return {
            fix: {key: _mean_and_range([each[key] for each in found]) for key in found[0]}
            for fix, found in added.items()
            if any(any(each.values()) for each in found)
        }

    def learn(self, configuration: Configuration, replays: Sequence[tuple[RunRecord, float]]) -> float | None:
        """How long its batches took in replays of slices, for all that runs the model this way; ``None`` if unknown.

        :param replays: records, and where in the schedule each slice begins, in nanoseconds.
        """
        serving = configuration.serving(self.costs[way(configuration)])
        shown = [self.forecast.pace_of(record, serving, begin) for record, begin in replays]
        shown = [each for each in shown if each > 0]
        if not shown:
            return None
        self.take(configuration, statistics.geometric_mean(shown))
        return self.paces[way(configuration)][-1]

    def take(self, configuration: Configuration, pace: float) -> None:
        """What :meth:`learn` found."""
        self.paces.setdefault(way(configuration), []).append(pace)

    def _composed(self, measured: Sequence[Choice], chosen: Mapping[int, Choice]) -> Configuration:
        return compose(self.first, [*measured, *(chosen[key] for key in sorted(chosen))], self.obstacle)

    def _ratio(self, before: Serving, after: Serving, within: Bounds) -> dict[str, float]:
        now, then = self._simulated(before, within), self._simulated(after, within)
        return {key: then[key] / now[key] if now[key] > 0 else 1.0 for key in now}

    def _simulated(self, serving: Serving, within: Bounds) -> dict[str, float]:
        key = (serving, tuple(within))
        if key not in self._seen:
            self.looked_at += 1
            self._seen[key] = self.forecast.statistics(serving, within)
        return self._seen[key]


def _mean_and_range(values: Sequence[float]) -> tuple[float, float, float]:
    return sum(values) / len(values), min(values), max(values)


def way(configuration: Configuration) -> tuple[str, ...]:
    """The way the model runs: what the time of a batch depends on."""
    return tuple(choice.words for choice in configuration.measured)
