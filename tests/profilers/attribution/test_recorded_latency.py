"""Latencies of imported traffic are shown next to those of the replay, but are not evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.diagnose import diagnose
from latfix.run_record.run_record import RunRecord
from latfix.traffic.parsed_fields import RECORDED

Simulate = Callable[..., RunRecord]


def test_recorded_latencies_change_no_cause(simulate: Simulate) -> None:
    # GIVEN a replay of imported traffic whose recorded latencies are those of the replay itself
    record = simulate(rate=20)
    recorded = np.full(len(record.traffic), np.nan)
    measured = record.requests["warmup"] == 0
    recorded[record.requests["index"][measured]] = record.requests["latency_ns"][measured] / 1e6
    plain = diagnose(record, bootstrap=20)
    # WHEN
    traffic = replace(record.traffic, features={**record.traffic.features, RECORDED: recorded})
    found = diagnose(replace(record, traffic=traffic), bootstrap=20)
    # THEN they are shown with its percentiles, and no cause has changed
    assert [(each.cause, each.tail_ms) for each in found.causes] == [(c.cause, c.tail_ms) for c in plain.causes]
    assert found.recorded_ms["p50"] == pytest.approx(found.latency_ms["p50"], rel=0.01)
    assert not plain.recorded_ms
