"""Whole configurations, simulated on the recorded requests: which one is predicted to serve best.

The time of a batch was measured for each way to run the model (:mod:`configuration`). The policy around it is
simulated: which requests share a batch, how long it stays open, how many workers there are. Each replay shows how
long batches take while the rest of the service runs, and corrects that time for all configurations that run the model
the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.profilers.forecast.recorded_work import OF_THE_MACHINE
from latfix.profilers.forecast.settings_forecast import Forecast, Pace, Serving
from latfix.results.optimization import Prediction
from latfix.run_record.run_record import RunRecord
from latfix.runners.optimize.configuration import Alternative, Choice, Configuration, Obstacle, compose
from latfix.settings import RunnerSettings

#: Maximum error of the simulation for the settings that ran; beyond it nothing is predicted. The p99 of a few hundred
#: requests depends on the few requests of one moment, so it may be off by more.
_WORST_ERRORS = {"mean": 0.5, "p99": 1.0}
#: Smallest predicted gain that is worth a setting, as a logarithm: forecasts do not resolve less.
LEAST_GAIN = 0.01
_PASSES = 3
#: Up to this many fixes, a gain is shared among them over all orders of adding them.
_ALL_ORDERS = 4
Bounds = Sequence[tuple[float, float]]


def goal_score(goal: str, ratio: Mapping[str, float]) -> float:
    """Logarithm of the ratios over the first settings, weighted; below 0 is better.

    :param goal: the statistic of latency to minimize, such as ``p99``; next to a percentile the mean counts half.
    """
    own = math.log(max(ratio[goal], 1e-9))
    return own if goal == "mean" else (2 * own + math.log(max(ratio["mean"], 1e-9))) / 3


def ratios(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """After over before, by statistic; 1 if there is nothing before."""
    return {key: after[key] / before[key] if before[key] > 0 else 1.0 for key in before}


def trusted(forecast: Forecast) -> bool:
    """True if the forecast for the settings that ran is close enough to predict others."""
    return all(forecast.error_of(key) <= worst for key, worst in _WORST_ERRORS.items())


@dataclass(slots=True)
class Planner:
    """Predicts configurations.

    :param costs: by :func:`way`, how the time of batches changes.
    :param paces: by :func:`way`, how long it took relative to the prediction, by replay.
    :param refused: choices that together did not run, by :attr:`Choice.words`, or were rejected, by
        :attr:`Choice.suspect`.
    :ivar simulations: number of simulated configurations.
    """

    forecast: Forecast
    goal: str
    first: RunnerSettings
    obstacle: Obstacle
    costs: dict[tuple[str, ...], BatchCost | None] = field(default_factory=lambda: {(): None})
    paces: dict[tuple[str, ...], list[Pace]] = field(default_factory=dict)
    refused: set[frozenset[str]] = field(default_factory=set)
    simulations: int = 0
    _seen: dict[tuple[Serving, tuple[tuple[float, float], ...]], dict[str, float]] = field(default_factory=dict)

    def knows(self, configuration: Configuration) -> bool:
        """True if its way to run the model was measured; others cannot be predicted."""
        return way(configuration) in self.costs

    def predict(
        self, configuration: Configuration, within: Bounds = (), *, without: frozenset[str] = frozenset()
    ) -> Prediction:
        """Ratios over the first settings.

        :param within: stretches of the schedule to count, in nanoseconds; empty for all of it.
        :param without: causes whose time neither has.
        """
        cost = self.costs[way(configuration)]
        sides = [self.serving(each) for each in (Configuration(self.first), configuration)]
        before, after = (replace(side, without=side.without | without) for side in sides)
        ratio = self._ratio(before, after, within)
        return Prediction(ratio=ratio, compute=None if cost is None else (0.0, cost.typical))

    def in_hindsight(
        self, configuration: Configuration, rounds: Sequence[tuple[RunRecord, RunRecord]], within: Bounds
    ) -> dict[str, float]:
        """Ratios over the first settings, each at the pace that replays of both showed.

        :param within: the stretch of the schedule that was replayed; empty for all of it.
        """
        sides = []
        for records, each in zip(zip(*rounds, strict=True), (Configuration(self.first), configuration), strict=True):
            serving = each.serving(self.costs[way(each)])
            shown = [self.forecast.pace_of(record, serving) for record in records]
            sides.append(replace(serving, pace=Pace.typical(shown)))
        return self._ratio(sides[0], sides[1], within)

    def serving(self, configuration: Configuration) -> Serving:
        """Input of the forecast, at the pace that replays showed for this way to run the model.

        Without one, at that of the largest part of it: two workers compete for memory in any precision.
        """
        known = way(configuration)
        shown = self.paces.get(max((each for each in self.paces if {*each} <= {*known}), key=len, default=()), [])
        return replace(configuration.serving(self.costs[known]), pace=Pace.typical(shown))

    def score(self, configuration: Configuration, within: Bounds = ()) -> float:
        """Predicted :func:`goal_score`; infinite if choices of it were refused.

        :param within: as in :meth:`predict`.
        """
        named = {name for choice in configuration.choices for name in (choice.words, choice.suspect)}
        if any(each <= named for each in self.refused):
            return math.inf
        return goal_score(self.goal, self.expected(configuration, within))

    def expected(self, configuration: Configuration, within: Bounds = ()) -> dict[str, float]:
        """The ratios by which configurations are chosen: geometric means with and without effects of the machine.

        These occur elsewhere in the next replay: the best settings for one moment in which others took the cores are
        not those for all other moments.

        :param within: as in :meth:`predict`.
        """
        ratio, undisturbed = (
            self.predict(configuration, within, without=each).ratio for each in (frozenset(), OF_THE_MACHINE)
        )
        return {key: math.sqrt(ratio[key] * undisturbed[key]) for key in ratio}

    def best(self, measured: Sequence[Choice], numbers: Sequence[Sequence[Choice]]) -> Configuration:
        """The best configuration of some measured choices and at most one choice of each group.

        A coordinate search: one group after the other is varied until none gains. Choices that gain nothing are left
        out.
        """
        chosen: dict[int, Choice] = {}
        best = self._composed(measured, chosen)
        score = self.score(best)
        for _ in range(_PASSES):
            before = dict(chosen)
            for place, group in enumerate(numbers):
                others = {key: choice for key, choice in chosen.items() if key != place}
                for trial in (others, *({**others, place: choice} for choice in group)):
                    configuration = self._composed(measured, trial)
                    predicted = self.score(configuration)
                    simpler = len(configuration.choices) < len(best.choices)
                    if predicted < score - LEAST_GAIN or (simpler and predicted < score + LEAST_GAIN / 2):
                        best, score, chosen = configuration, min(predicted, score), trial
            if chosen == before:
                break
        return best

    def shares(self, configuration: Configuration) -> dict[str, dict[str, tuple[float, float, float]]]:
        """By fix and statistic, its share of the logarithm of the predicted ratio: mean, least and most over orders.

        The gain of a fix depends on the fixes that are there when it is added; the means over all orders (Shapley,
        1953) add up to the whole. With many fixes, only cyclic orders are used, one that begins with each fix. Fixes
        that the forecast cannot simulate have no share.
        """
        choices = configuration.choices
        places = range(len(choices))
        if len(choices) <= _ALL_ORDERS:
            orders = [list(order) for order in permutations(places)]
        else:
            orders = [[*places[k:], *places[:k]] for k in places]
        added: dict[str, list[dict[str, float]]] = {choice.fix.id: [] for choice in choices}
        for order in orders:
            # Each subset is composed in the configuration's own order.
            subsets = [sorted(order[:k]) for k in range(len(order) + 1)]
            steps = [Configuration(self.first, tuple(choices[place] for place in each)) for each in subsets]
            if all(way(step) in self.costs for step in steps):
                predicted = [self.predict(step).ratio for step in steps]
                for place, before, after in zip(order, predicted, predicted[1:], strict=False):
                    added[choices[place].fix.id].append({key: math.log(after[key] / before[key]) for key in after})
        shares: dict[str, dict[str, tuple[float, float, float]]] = {}
        for fix, found in added.items():
            if any(any(each.values()) for each in found):
                values = {key: [each[key] for each in found] for key in found[0]}
                shares[fix] = {key: (sum(each) / len(each), min(each), max(each)) for key, each in values.items()}
        return shares

    def learn(self, configuration: Configuration, replays: Sequence[RunRecord]) -> None:
        """Learn from replays of parts of the traffic how long the service takes relative to the prediction."""
        serving = configuration.serving(self.costs[way(configuration)])
        shown = [self.forecast.pace_of(record, serving) for record in replays]
        if any(each.batches > 0 for each in shown):
            self.paces.setdefault(way(configuration), []).append(Pace.typical(shown))

    def _composed(self, measured: Sequence[Choice], chosen: Mapping[int, Choice]) -> Configuration:
        return compose(self.first, [*measured, *(chosen[key] for key in sorted(chosen))], self.obstacle)

    def _ratio(self, before: Serving, after: Serving, within: Bounds) -> dict[str, float]:
        return ratios(self._simulated(before, within), self._simulated(after, within))

    def _simulated(self, serving: Serving, within: Bounds) -> dict[str, float]:
        key = (serving, tuple(within))
        if key not in self._seen:
            self.simulations += not serving.without >= OF_THE_MACHINE
            self._seen[key] = self.forecast.statistics(serving, within)
        return self._seen[key]


def way(one: Configuration | Alternative) -> tuple[str, ...]:
    """The way that it runs the model, on which the time of a batch depends."""
    return tuple(choice.runs for choice in one.choices if choice.measured)
