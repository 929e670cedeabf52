"""The shape of work is found on simulated times, and nothing is found where there is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from latfix.arrays import Floats
from latfix.profilers.evidence.work_model import fit_work_model, folds_of
from latfix.profilers.evidence.work_shapes import Term, earned_terms, of_requests

N = 2000


def drawn(seed: int) -> tuple[dict[str, Floats], Floats]:
    """Two inputs, and the factor of chance in each time."""
    rng = np.random.default_rng(seed)
    inputs = {"side": np.rint(rng.lognormal(5.5, 0.6, N)), "rows": rng.integers(1, 9, N).astype(float)}
    return inputs, rng.lognormal(0, 0.05, N)


SHAPES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "square": lambda side, _: 60 + side**2 / 200,
    "product": lambda side, rows: 100 + side * rows,
    "log": lambda side, _: np.log1p(side),
    "bend": lambda side, _: 100 + 3 * np.maximum(side - 400, 0),
    "limit": lambda side, _: 50 + np.minimum(side, 300),
    "tiles": lambda side, _: 60 + 128 * np.ceil(side / 128),
    "powers": lambda side, _: 60 + np.exp2(np.ceil(np.log2(side))),
    "step": lambda side, _: np.where(side > 333, 700.0, 100.0),
    "larger": lambda side, rows: 60 + np.maximum(side, 70 * rows),
    "smaller": lambda side, rows: 60 + np.minimum(side, 90 * rows),
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("named", [True, False])
def test_the_largest_inputs_are_predicted_by_fits_that_did_not_see_them(shape: str, named: bool, seed: int) -> None:
    inputs, chance = drawn(seed)
    truth = 1e5 * SHAPES[shape](*inputs.values())
    sample = of_requests(np.rint(truth * chance).astype(np.int64), N)
    given = [Term((name,)) for name in inputs] if named else []
    terms = earned_terms(inputs, {}, given, sample)
    assert terms[: len(given)] == tuple(given)
    design = np.column_stack([np.ones(N), *(term.column(inputs) for term in terms)])
    predicted = fit_work_model(design, sample.time_ns, sample.time_ns > 0).predict(design, folds_of(N))
    largest = truth >= np.quantile(truth, 0.95)
    assert np.abs(predicted / truth - 1)[largest].mean() < 0.03


def test_what_is_linear_stays_linear() -> None:
    for seed in range(10):
        inputs, chance = drawn(seed)
        time = 1e5 * (40 + inputs["side"] + 60 * inputs["rows"]) * chance
        given = tuple(Term((name,)) for name in inputs)
        assert earned_terms(inputs, {}, given, of_requests(time.astype(np.int64), N)) == given


def test_terms_that_later_ones_replace_are_left_out() -> None:
    inputs, chance = drawn(6)
    time = (
        1e5 * np.array([100.0, 300, 500, 900, 2000])[np.searchsorted([150, 250, 400, 800], inputs["side"])] * chance
    )
    terms = earned_terms(inputs, {}, (), of_requests(time.astype(np.int64), N))
    assert {term.form for term in terms} == {"above"} and len(terms) == 4


@pytest.mark.parametrize("seed", range(6))
def test_the_simplest_of_forms_that_predict_as_well_is_taken(seed: int) -> None:
    """Multiples of 8 may fit noise a little better."""
    inputs, _ = drawn(seed)
    time = 1e5 * inputs["side"] * np.random.default_rng(seed + 50).lognormal(0, 0.3, N)
    assert earned_terms(inputs, {}, (), of_requests(time.astype(np.int64), N)) == (Term(("side",)),)


def test_what_stays_the_same_for_a_while_earns_no_term_by_chance() -> None:
    """Thirty stretches, each with a size and a speed of its own; sixty logs."""
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        size = np.repeat(np.rint(rng.lognormal(5, 0.6, 30)), 20)
        time = 2e7 * np.repeat(rng.lognormal(0, 0.4, 30), 20) * rng.lognormal(0, 0.05, 600)
        found += bool(earned_terms({"size": size}, {}, (), of_requests(time.astype(np.int64), 600)))
    assert found <= 1


@pytest.mark.parametrize("n", [60, 300, 2000])
def test_columns_of_chance_are_no_input(n: int) -> None:
    """Eight columns in forty logs; one slow request in fifty."""
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        columns = {f"c{k}": np.rint(rng.lognormal(3, 1, n)) for k in range(8)}
        time = 1e7 * rng.lognormal(0, 0.3, n) * np.where(rng.random(n) < 0.02, 10, 1)
        found += bool(earned_terms(columns, {}, (), of_requests(time.astype(np.int64), n)))
    assert found <= 1


def test_an_input_that_matters_on_one_route_is_a_product_with_it() -> None:
    inputs, chance = drawn(3)
    on = (np.arange(N) % 3 == 0).astype(float)
    time = 1e5 * (40 + on * inputs["side"]) * chance
    terms = earned_terms(inputs, {"route /a": on}, [Term(("route /a",))], of_requests(time.astype(np.int64), N))
    assert Term(("side", "route /a"), "product") in terms
    assert "side × route /a" in [term.words for term in terms]


def test_of_two_inputs_in_one_unit_the_larger_is_named_without_a_factor() -> None:
    rng = np.random.default_rng(5)
    inputs = {name: np.rint(rng.lognormal(5, 0.6, N)) for name in ("reads", "writes")}
    time = 1e5 * (60 + np.maximum(*inputs.values())) * rng.lognormal(0, 0.05, N)
    terms = earned_terms(inputs, {}, (), of_requests(time.astype(np.int64), N))
    assert [term.words for term in terms] == ["max(reads, writes)"]


def test_an_input_of_few_requests_is_found() -> None:
    rng = np.random.default_rng(4)
    images = np.where(rng.random(N) < 0.02, rng.integers(1, 5, N), 0).astype(float)
    time = 1e7 * (1 + 10 * images) * rng.lognormal(0, 0.1, N)
    assert earned_terms({"images": images}, {}, (), of_requests(time.astype(np.int64), N)) == (Term(("images",)),)
