"""Phrases of the history."""

from __future__ import annotations

from latfix.gates.reference_level import Level
from latfix.reports.history_rows import reach_words


def test_the_expected_error_rate_is_a_share_of_the_requests() -> None:
    few, most = [0.0, 0.002, 0.0, 0.004, 0.001], [0.2, 0.98, 0.95, 0.99, 0.97]
    assert reach_words("error_rate", Level.of(few, "error_rate")).startswith("0 % to 0.")
    assert reach_words("error_rate", Level.of(most, "error_rate")).endswith(" to 100 %")
    # A score has no such bounds.
    assert reach_words("accuracy", Level.of(few, "accuracy")).startswith("-")
