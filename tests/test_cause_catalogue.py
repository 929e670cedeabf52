"""One list of causes: what is searched for, what a gate may name, and what a report has words for."""

from __future__ import annotations

from latfix.cause_catalogue import CAUSE_WORDS
from latfix.profilers.causes import CAUSES


def test_every_cause_that_is_searched_for_is_in_the_catalogue() -> None:
    assert {cause.id for cause in CAUSES} == set(CAUSE_WORDS)
