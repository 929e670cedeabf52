"""What a fixed computation next to slow batches says about the processor."""

from __future__ import annotations

import re

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
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
