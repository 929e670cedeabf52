"""The rows of the table of causes sum to the excess, whichever are listed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from latfix.reports.diagnosis_rows import cause_rows, cause_total
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord

Session = tuple[RunRecord, Diagnosis]


@pytest.mark.parametrize("limit", [0, 1, 3, 100])
def test_rows_sum_to_what_all_entries_sum_to(session: Session, limit: int) -> None:
    _, diagnosis = session
    rows = cause_rows(diagnosis, limit=limit)
    expected = sum(entry.tail_ms for entry in diagnosis.causes) if diagnosis.causes else diagnosis.unexplained_ms
    assert math.isclose(cause_total(rows, diagnosis)[0], expected, rel_tol=1e-9, abs_tol=1e-9)
    assert [row.is_unexplained for row in rows] == [False] * (len(rows) - 1) + [True], "always the last"


def test_a_diagnosis_without_an_entry_for_it_still_shows_unexplained(ordinary: Session) -> None:
    bare = replace(ordinary[1], causes=(), unexplained_ms=12.5, excess_ms=50.0)
    (row,) = cause_rows(bare, limit=5)
    assert (row.tail_ms, row.share) == (12.5, 0.25)


def test_named_causes_are_listed_beyond_the_limit_and_the_rest_is_one_row(ordinary: Session) -> None:
    _, diagnosis = ordinary
    rows = cause_rows(diagnosis, limit=0)
    named = [entry.cause for entry in diagnosis.causes if entry.named]
    assert [row.cause for row in rows] == [*named, "", "unexplained"]
    assert rows[-2].label == f"{len(diagnosis.causes) - len(named) - 1} smaller causes"
