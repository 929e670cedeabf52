"""One list of causes for the search, gates and reports."""

from __future__ import annotations

from latfix.cause_catalogue import CATALOGUE, RECORDED_ONLY, UNEXPLAINED
from latfix.profilers.causes import CAUSES


def test_every_cause_that_is_searched_for_is_in_the_catalogue() -> None:
    assert {cause.id for cause in CAUSES} == set(CATALOGUE) - RECORDED_ONLY
    assert len(CAUSES) == len(CATALOGUE) - len(RECORDED_ONLY)
    assert CAUSES[-1].id == UNEXPLAINED
