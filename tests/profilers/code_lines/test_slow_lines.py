"""Lines on which slow work spends more time than typical work, on samples made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.code_lines.slow_lines import slow_lines, stack_times
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.units import Evidence, gather
from latfix.profilers.probes.gil_probe import PERIOD_S, WAIT_SERIES
from latfix.run_record.run_record import RunRecord
from tests.profilers.samples import sample_columns
from tests.profilers.simulated_runs import simulate

MS = 1_000_000
PERIOD = int(PERIOD_S * 1e9)
#: The model's usual line, a line that is slow now and then (in a library called by the user's code), a library only.
STACKS = [
    ("/home/me/w/model.py:10 Ranker.forward", "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:9 call"),
    ("/venv/lib/python3.11/json/decoder.py:353 raw_decode", "/home/me/w/model.py:41 Ranker.lookup"),
    ("/venv/lib/python3.11/site-packages/torch/_ops.py:7 _call",),
]


def sampled(record: RunRecord, stack_of: Callable[[bool], int], hit: Mapping[int, object]) -> RunRecord:
    """The record with one stack sample per period within batches: ``stack_of`` whether the batch was hit."""
    compute = gather(record).units["compute"]
    ticks = np.arange(PERIOD, int(compute.end.max()), PERIOD)
    place = np.searchsorted(compute.start, ticks, side="right") - 1
    inside = (place >= 0) & (ticks < compute.end[np.maximum(place, 0)])
    stacks = np.array([float(stack_of(batch in hit)) for batch in place[inside].tolist()])
    series = {WAIT_SERIES: (ticks, np.zeros(len(ticks))), "stack.worker.0": (ticks[inside], stacks)}
    return replace(record, samples=sample_columns(series))


@pytest.fixture
def hit() -> dict[int, tuple[str, float]]:
    return dict.fromkeys(range(50, 600, 20), ("cpu", 60.0))


def test_the_line_of_slow_batches_is_reported(hit: dict[int, tuple[str, float]]) -> None:
    # GIVEN one batch of twenty that takes 60 ms longer, on a line that the others never reach
    record = sampled(simulate(rate=10, compute_faults=hit), lambda slow: 1 if slow else 0, hit)
    record = replace(record, meta=record.meta.updated(stacks=STACKS, workload_folder="/home/me/w"))
    # WHEN
    diagnosis = diagnose(record, bootstrap=20)
    found = diagnosis.lines
    # THEN that line comes first, with its time
    line = found[0]
    assert (line.unit, line.file, line.line, line.function) == ("compute", "model.py", 41, "Ranker.lookup")
    assert line.inside == "decoder.py raw_decode"
    assert line.slow_ms == pytest.approx(60, rel=0.3) and line.typical_ms == 0.0
    assert all(each.line != 10 for each in found), "equally long in slow and typical batches"
    # AND whole stacks have the same time
    slow_ms = {stack.frames: stack.slow_ms for stack in diagnosis.stacks if stack.unit == "compute"}
    assert slow_ms[STACKS[1]] == pytest.approx(line.slow_ms)


def test_without_user_code_the_library_is_named(hit: dict[int, tuple[str, float]]) -> None:
    evidence = gather(sampled(simulate(rate=10, compute_faults=hit), lambda slow: 2 if slow else 0, hit))
    (line,) = slow_lines(stack_times(evidence, STACKS), "/home/me/w")
    assert (line.file, line.line) == ("/venv/lib/python3.11/site-packages/torch/_ops.py", 7)


def test_without_samples_there_are_no_lines() -> None:
    evidence: Evidence = gather(simulate(rate=10))
    assert stack_times(evidence, STACKS) == () and stack_times(evidence, ()) == ()


def test_samples_of_unknown_stacks_are_ignored(hit: dict[int, tuple[str, float]]) -> None:
    evidence = gather(sampled(simulate(rate=10, compute_faults=hit), lambda slow: 77 if slow else 78, hit))
    assert stack_times(evidence, STACKS) == ()
