"""The next load: near the predicted crossing, where a replay narrows the answer most for its time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from latfix.capacity.load_crossing import LoadErrors, Seen, load_errors, pace_noise, quantiles
from latfix.capacity.next_load import next_load
from tests.capacity.test_max_load import CURVE as MM1

CURVE = replace(MM1, noise=2 * MM1.noise)
LIMIT = 0.1


def errors_of(*loads: float) -> LoadErrors:
    seen = [Seen(load=math.log(load), pace=0.0, noise=pace_noise(CURVE, math.log(load), 0.1)) for load in loads]
    return load_errors(CURVE, math.log(loads[0]), 0.0, seen, seed=0)


def wanted(*loads: float, limit: float | None = LIMIT, cost: float = 1.0) -> float | None:
    return next_load(errors_of(*loads), loads, limit, lambda load: cost / load, first=loads[0])


def test_it_lies_within_the_predicted_crossing() -> None:
    low, high = np.exp(np.quantile(errors_of(0.25).wanted(LIMIT), [0.1, 0.9]))
    load = wanted(0.25)
    assert load is not None and low <= load <= high


def test_suggested_replays_narrow_the_answer() -> None:
    loads, widths = [0.25], []
    for _ in range(4):
        _, lo, hi = quantiles(errors_of(*loads).wanted(LIMIT))
        widths.append(hi - lo)
        load = wanted(*loads)
        assert load is not None
        loads.append(load)
    assert widths[1] < 0.8 * widths[0] and widths[3] < 0.6 * widths[0]


def test_a_simulation_is_not_extrapolated_too_far() -> None:
    load = next_load(errors_of(0.02), [0.02], LIMIT, lambda load: 1 / load, first=0.02)
    assert load == pytest.approx(0.08), "four times, though the curve suggests twenty-seven"


def test_if_every_replay_ended_early_it_steps_down_and_gives_up() -> None:
    replayed = [1.0]
    while (load := next_load(None, replayed, LIMIT, lambda load: 1 / load, first=1.0)) is not None:
        replayed.append(load)
    assert replayed == [1.0, 0.5, 0.25, 0.125, 0.0625]


def test_if_every_replay_ended_early_it_follows_their_guess() -> None:
    steps = [
        next_load(None, [1.0], LIMIT, lambda load: 1 / load, first=1.0, guess=guess) for guess in (0.4, 0.9, 0.0)
    ]
    assert steps == pytest.approx([0.4, 1 / 1.5, 0.25])


def test_if_no_load_meets_the_limit_it_gives_up() -> None:
    assert wanted(0.02, limit=0.001) is None or wanted(0.02, 0.005, 0.001, limit=0.001) is None


def test_without_a_limit_the_knee_is_searched() -> None:
    load = wanted(0.25, limit=None)
    assert load is not None and 0.3 < load < 0.75
