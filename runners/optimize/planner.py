"""Whole configurations, simulated on the recorded requests: which is foretold to serve best.

The time of a batch is what was measured of the way the model runs (:mod:`alternatives`); the policy around it, who
shares a batch, how long it stays open, how many workers take them, is simulated. Each replay of a configuration
corrects what is foretold of those that run the model the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.profilers.forecast.settings_forecast import Forecast, Serving
from latfix.results.optimization import Prediction
from latfix.runners.optimize.configuration import Choice, Configuration, Obstacle, compose
from latfix.settings import RunnerSettings

#: A simulation that misses what was measured by more than this predicts nothing.
WORST_ERROR = 0.5
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


@dataclass(slots=True)
class Planner:
    """Foretells configurations.

    :param costs: by ids of measured choices (:attr:`Configuration.measured`), how the time of batches changes.
    :param corrections: by the same, the logarithm of what replays showed over what was foretold.
    """

    forecast: Forecast
    goal: Goal
    first: RunnerSettings
    obstacle: Obstacle
    costs: dict[tuple[str, ...], BatchCost | None] = field(default_factory=lambda: {(): None})
    corrections: dict[tuple[str, ...], float] = field(default_factory=dict)
    looked_at: int = 0
    _seen: dict[tuple[Serving, tuple[tuple[float, float], ...]], dict[str, float]] = field(default_factory=dict)

    def predict(self, configuration: Configuration, within: Bounds = ()) -> Prediction:
        """Ratios over the first settings.

        :param within: stretches of the schedule that count, in nanoseconds; all of it where there are none.
        """
        cost = self.costs[way(configuration)]
        then, now = (
            self._simulated(each.serving(with_), within)
            for each, with_ in ((configuration, cost), (Configuration(self.first), None))
        )
        ratio = {key: then[key] / now[key] if now[key] > 0 else 1.0 for key in now}
        return Prediction(ratio=ratio, compute=None if cost is None else (0.0, cost.typical))

    def score(self, configuration: Configuration) -> float:
        """What it is foretold to be worth, corrected by replays; see :meth:`Goal.score`."""
        return self.goal.score(self.predict(configuration).ratio) + self.corrections.get(way(configuration), 0.0)

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

    def correct(
        self, configuration: Configuration, foretold: Mapping[str, float], shown: Mapping[str, float]
    ) -> None:
        """Take what a replay showed over what was foretold of it for all that runs the model this way."""
        error = self.goal.score(shown) - self.goal.score(foretold)
        self.corrections[way(configuration)] = self.corrections.get(way(configuration), 0.0) + error

    def _composed(self, measured: Sequence[Choice], chosen: Mapping[int, Choice]) -> Configuration:
        return compose(self.first, [*measured, *(chosen[key] for key in sorted(chosen))], self.obstacle)

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
