"""What a fixed computation next to slow batches says about the processor."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.units import gather
from latfix.profilers.probes.gil_probe import PERIOD_S, WAIT_SERIES
from latfix.reports.answer import diagnosis_answer
from latfix.results.diagnosis import CauseSummary
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import PACE
from tests.profilers.samples import add_samples
from tests.profilers.simulated_runs import simulate

STRUCK = dict.fromkeys(range(20, 600, 15), ("cpu", 60.0))
QUIET_NS, TICK_NS = 100_000.0, 1_000_000


def evidence(record: RunRecord, slower: float, noise: float = 0.1) -> str:
    """The sentence, if the fixed computation takes ``1 + slower`` times as long while a batch is slow."""
    batches = record.batches
    times = np.arange(0, int(batches["compute_end_ns"].max()), TICK_NS)
    took = QUIET_NS * (1 + noise * np.random.default_rng(0).standard_normal(len(times)))
    begun, ended = batches["h2d_end_ns"], batches["compute_end_ns"]
    for begin, end in zip(begun, ended, strict=True):
        if end - begin > 50 * TICK_NS:
            took[(times >= begin) & (times < end)] *= 1 + slower
    found = diagnose(add_samples(record, {PACE: (times, took)}), bootstrap=20)
    assert found.verdict == "host.slowdown"
    return next(cause.evidence for cause in found.causes if cause.cause == "host.slowdown")


@pytest.mark.parametrize(
    ("slower", "said"),
    [(0.3, r"(29|30|31)[.\d]* % longer than next to others: the processor"), (0.0, "not the processor was slower")],
)
def test_the_pace_tells_a_slow_processor_from_slow_work(slower: float, said: str) -> None:
    assert re.search(said, evidence(simulate(rate=20, compute_faults=STRUCK), slower))


def test_a_pace_between_the_two_says_nothing() -> None:
    assert "fixed computation" not in evidence(simulate(rate=20, compute_faults=STRUCK), 0.05)


def test_without_the_probe_nothing_is_said() -> None:
    found = diagnose(simulate(rate=20, compute_faults=STRUCK), bootstrap=20)
    assert not any("fixed computation" in cause.evidence for cause in found.causes)


def in_prepare(*, every: int, slower: float) -> RunRecord:
    """A run whose struck prepares compute for 60 ms at one line, with the pace read at every so many milliseconds.

    :param slower: as for :func:`evidence`.
    """
    record = simulate(rate=20, prepare_faults=STRUCK)
    unit = gather(record).units["prepare"]
    times = np.arange(0, int(unit.end.max()), every * TICK_NS)
    took = QUIET_NS * (1 + 0.1 * np.random.default_rng(0).standard_normal(len(times)))
    ticks = np.arange(0, int(unit.end.max()), int(PERIOD_S * 1e9))
    looks, struck = [], np.flatnonzero(unit.end - unit.start > 50 * TICK_NS)
    for begin, end in zip(unit.start[struck], unit.end[struck], strict=True):
        took[(times >= begin) & (times < end)] *= 1 + slower
        looks.append(ticks[(ticks >= begin) & (ticks < end)])
    at = np.concatenate(looks)
    series = {PACE: (times, took), WAIT_SERIES: (ticks, np.zeros(len(ticks)))}
    record = add_samples(record, {**series, "stack.prepare.0": (at, np.zeros(len(at)))})
    stacks = (("/lib/python3.11/json/decoder.py:353 raw_decode", "/home/me/w/model.py:41 Ranker.prepare"),)
    return replace(record, meta=record.meta.updated(stacks=stacks, workload_folder="/home/me/w"))


def slowdown(record: RunRecord, scale: Scale | None = None) -> CauseSummary:
    found = diagnose(record, bootstrap=20, scale=scale)
    assert found.verdict == "host.slowdown" and found.ledger.conservation_error_ns() == 0
    return found.causes[0]


@pytest.mark.parametrize(
    ("every", "said"), [(1, "took no longer than next to others"), (600, r"took at most 1\.\d times its median")]
)
def test_slow_code_of_the_adapter_is_named_by_its_line(every: int, said: str) -> None:
    # GIVEN prepares that compute for longer at one line, on a processor that is as fast as ever
    record = in_prepare(every=every, slower=0.0)
    # THEN the line is the culprit, and nothing is to be fixed at the model
    for scale in (None, Scale(limit=100, chunk=200)):
        found = slowdown(record, scale)
        assert found.culprit == "model.py:41 (Ranker.prepare)" and found.fixes == ()
        assert "most of it in the adapter's prepare(), at model.py:41" in found.evidence
        assert "not the processor was slower" in found.evidence and re.search(said, found.evidence)
    # AND the answer says where to look
    lines = {line.label: line.words for line in diagnosis_answer(diagnose(record, bootstrap=20)).lines}
    assert "mostly at model.py:41 (Ranker.prepare)" in lines["why"] and "model.py:41" in lines["next step"]


def test_prepare_on_a_slower_processor_is_not_its_code() -> None:
    found = slowdown(in_prepare(every=1, slower=0.3))
    assert found.culprit == "" and "locality.cores" in found.fixes
    assert "next to these units of prepare took" in found.evidence and "the processor was slower" in found.evidence
