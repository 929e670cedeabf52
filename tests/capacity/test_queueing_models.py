"""Formulas against values known exactly, and against a queue that is simulated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from latfix.capacity.queueing_models import (
    Service,
    Wait,
    erlang_c,
    ggc_wait,
    percentile_of_sum,
    relaxation_time,
)

EXPONENTIAL = Service(mean=1.0, scv=1.0)


def mean_of(wait: Wait | None) -> float:
    assert wait is not None
    return wait.total_mean


CONSTANT = Service(mean=1.0, scv=0.0)
#: Half a second or two, with equal chances.
UNEVEN = Service.of([0.5, 2.0] * 50)


@pytest.mark.parametrize(
    ("rate", "service", "more", "exact"),
    [
        *((busy, EXPONENTIAL, {}, busy / (1 - busy)) for busy in (0.1, 0.5, 0.9, 0.99)),
        # M/M/2 at a load of 1 Erlang: C / (c mu - lambda) = (1/3) / (2 - 1)
        (1.0, EXPONENTIAL, {"servers": 2}, 1 / 3),
        # Pollaczek and Khinchine: lambda E[S^2] / 2 (1 - rho)
        (0.8, CONSTANT, {}, 0.8 / (2 * 0.2)),
        (0.6, UNEVEN, {}, 0.6 * 2.125 / (2 * (1 - 0.6 * 1.25))),
        # Kingman: with independent arrivals the same; with metronomes nothing
        (0.7, Service(mean=1.0, scv=3.0), {"arrival_scv": 1.0}, 0.7 * 4 / (2 * 0.3)),
        (0.7, Service(mean=1.0, scv=3.0), {"arrival_scv": 5.0}, 0.7 * 8 / (2 * 0.3)),
        (0.9, CONSTANT, {"arrival_scv": 0.0}, 0.0),
    ],
)
def test_waits_as_known(rate: float, service: Service, more: dict[str, Any], exact: float) -> None:
    assert mean_of(ggc_wait(rate, service, **more)) == pytest.approx(exact)


@pytest.mark.parametrize(
    ("servers", "offered", "chance"), [(1, 0.7, 0.7), (2, 1.0, 1 / 3), (3, 2.0, 4 / 9), (2, 0, 0)]
)
def test_erlang_c_of_textbooks(servers: int, offered: float, chance: float) -> None:
    assert erlang_c(servers, offered) == pytest.approx(chance)


@pytest.mark.parametrize(("rate", "servers"), [(1.0, 1), (1.2, 1), (3.0, 3), (2.0, 2)])
def test_no_answer_where_the_servers_cannot_keep_up(rate: float, servers: int) -> None:
    assert ggc_wait(rate, EXPONENTIAL, servers=servers) is None
    assert math.isinf(relaxation_time(rate, 1.0, servers))


def test_service_moments() -> None:
    assert Service.of([2.0, 2.0, 2.0]) == Service(mean=2.0, scv=0.0)
    assert Service.of([1.0, 3.0]).scv == pytest.approx(0.25)
    assert Service.of([]) == Service(mean=0.0, scv=0.0)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_quantiles_of_mm1_waits_are_exact(q: float) -> None:
    wait = ggc_wait(0.8, EXPONENTIAL)
    assert wait is not None
    # P(W > t) = rho exp(-(mu - lambda) t)
    t = wait.quantile(q)
    assert 0.8 * math.exp(-0.2 * t) == pytest.approx(1 - q)


def test_a_quantile_below_the_chance_of_waiting_is_no_wait() -> None:
    assert Wait(mean=1.0, probability=0.3).quantile(0.6) == 0.0
    assert Wait(mean=1.0, probability=0.3, held=0.2).quantile(0.6) == 0.2


@pytest.mark.parametrize("percentile", [50.0, 95.0, 99.0])
def test_latency_of_mm1_is_exponential(percentile: float) -> None:
    wait = ggc_wait(0.7, EXPONENTIAL)
    assert wait is not None
    service = -np.log1p(-(np.arange(5000) + 0.5) / 5000)
    exact = -math.log(1 - percentile / 100) / (1 - 0.7)
    assert percentile_of_sum([wait], [service], percentile, seed=1) == pytest.approx(exact, rel=0.02)
