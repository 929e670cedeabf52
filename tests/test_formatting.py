"""Numbers for people: three significant digits, and a dash where there is no number."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix import formatting as figures
from latfix.lower_bound import AtLeast


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0412, "0.0412"),
        (0.00310, "0.00310"),
        (4.126, "4.13"),
        (9.999, "10.0"),
        (99.96, "100"),
        (412.4, "412"),
        (999.7, "1,000"),
        (41_234, "41,234"),
        (116_234.5, "116,234"),
        (999_999_999.7, "1.00e+09"),
        (-260.4, "-260"),
        (1.23456e12, "1.23e+12"),
        (4.5e-7, "4.50e-07"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (None, "–"),
        ("412", "–"),
        (True, "–"),
        (10**400, "–"),
    ],
)
def test_three_significant_digits_and_all_before_the_point(value: object, text: str) -> None:
    assert figures.significant(value) == text


@given(st.floats(min_value=1e-4, max_value=9e8))
def test_the_text_is_within_half_a_unit_of_the_third_digit(value: float) -> None:
    shown = float(figures.significant(value).replace(",", ""))
    assert math.isclose(shown, value, rel_tol=0.0051)


def test_units_are_always_there_except_with_the_dash() -> None:
    assert figures.milliseconds(412.4) == "412 ms"
    assert figures.milliseconds(None) == "–"
    assert figures.rate(48.12) == "48.1/s"
    assert [figures.seconds(value) for value in (1.28, 0.1, 0.00652, 0)] == ["1.28 s", "0.100 s", "6.52 ms", "0 s"]
    assert figures.share(0.5714) == "57.1 %"
    assert figures.ratio(0.2379) == "x0.238"
    assert figures.interval((180.2, 240.1)) == "[180, 240]"


@pytest.mark.parametrize("bounds", [None, (1,), (float("nan"), 1), (None, None), "ab", 3])
def test_an_interval_without_two_numbers_is_a_dash(bounds: object) -> None:
    assert figures.interval(bounds) == figures.uncertain_bounds(bounds) == "–"


@pytest.mark.parametrize("end", [None, float("nan"), float("inf")])
def test_an_interval_with_an_open_upper_end_shows_the_lower_one(end: float | None) -> None:
    assert figures.interval((28.8, end)) == "≥ 28.8"
    assert figures.uncertain_bounds((28.8, end)) == "at least 28.8"
    assert figures.interval((0.0, end)) == figures.uncertain_bounds((0.0, end)) == "–", "it bounds nothing"


def test_an_interval_that_bounds_nothing_is_called_that() -> None:
    assert figures.interval((3e-15, 6e9)) == figures.speed_range((3e-15, 6e9)) == "unbounded"
    assert figures.interval((0.004, 900.0)) == "[0.00400, 900]"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(203.0, "210"), (210.0, "220"), (0.0412, "0.042"), (99.6, "100"), (1234.0, "1300"), (8.0, "8.1"), (1, "1.1")],
)
def test_a_limit_is_rounded_up(value: float, expected: str) -> None:
    assert figures.rounded_up(value) == expected and float(expected) > value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (412.4, "412 ms"),
        (9_876.5, "9,876 ms"),
        (116_234.5, "116 s"),
        (1_650_000, "27.5 min"),
        (-20_000, "-20.0 s"),
        (AtLeast(116_234.5), "> 116 s"),
        (AtLeast(0), "lost"),
        (None, "–"),
    ],
)
def test_long_durations_are_in_seconds_or_minutes(value: float | None, text: str) -> None:
    assert figures.milliseconds(value) == text


def test_a_point_in_time_has_milliseconds_however_late_it_is() -> None:
    texts = ["0.000", "116.234", "86,400.000", "–", "–"]
    assert [figures.moment(at) for at in (0.0, 116_234.4, 86_399_999.6, math.nan, None)] == texts


def test_the_ends_of_an_interval_have_the_digits_of_other_figures() -> None:
    assert figures.uncertain_bounds((116_200.0, 116_270.0)) == "116,200 to 116,270"
    assert figures.uncertain_bounds((372.2, 1010.0)) == "372 to 1,010"
    assert figures.uncertain_bounds((0.00463, 295.0)) == "up to 295", "about 0"
    assert figures.uncertain_bounds((0.4, 295.0)) == "0.400 to 295"


def test_counts_are_exact() -> None:
    assert figures.count(1_234_567) == "1,234,567"


def test_labels() -> None:
    assert figures.key_label("p99_9") == "p99.9"
    assert figures.key_label("mean") == "mean"
    assert figures.tail_words(99.0) == "slowest 1 %"
    assert figures.tail_words(99.9) == "slowest 0.1 %"
    assert figures.tick(20.0) == "20"
    assert figures.tick(0.1 + 0.2) == "0.3"
    assert figures.sentence("most paused") == "Most paused."
    assert figures.sentence("31 pauses.") == "31 pauses."
    assert figures.sentence("") == ""


def test_every_percentage_has_a_blank_before_its_sign() -> None:
    """``33 %``, as ``share`` and ``percent`` write it; the format ``.0%`` writes ``33%``."""
    root = Path(__file__).resolve().parent.parent
    folders = ("cli", "latfix", "profilers", "reports", "runners")
    files = [file for folder in folders for file in (root / folder).rglob("*.py")]
    assert len(files) > 300
    assert not [str(file) for file in files if re.search(r"[.\d]%\}|\}%", file.read_text(encoding="utf-8"))]
