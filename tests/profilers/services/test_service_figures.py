"""Goodput of a service behind an address."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.profilers.evidence.outside.outside_view import Serving
from latfix.profilers.services.service_figures import service_figures
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import EVENT_FIELDS, REQUEST_DTYPE
from tests.records import build_record, zeros

MS = 1_000_000


def streamed(slo: dict[str, float]) -> RunRecord:
    """Two answers of five tokens in three parts, 60 ms after the first: evenly, and with a long gap; one plain."""
    rows = zeros(REQUEST_DTYPE, 3)
    rows["index"], rows["arrival_ns"] = np.arange(3), np.arange(3) * 1_000 * MS
    rows["chunks"], rows["output_tokens"] = np.array([3, 3, 0]), np.array([5, 5, 0])
    rows["first_token_ns"], rows["latency_ns"] = np.array([20, 20, 0]) * MS, np.array([80, 80, 50]) * MS
    rows["finish_ns"] += 10 * MS
    events = {name: np.zeros(2, np.int64) for name in EVENT_FIELDS}
    details = np.empty(2, dtype=object)
    details[:] = [{"gaps_us": [30_000, 30_000]}, {"gaps_us": [5_000, 55_000]}]
    events |= {"request": np.arange(2), "kind": np.full(2, "stream", dtype=object), "detail": details}
    return build_record(rows, events=events, http={"slo": slo})


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        ({"gap": 50.0}, 2),  # the longest gap, not the mean of 30 ms
        ({"gap": 25.0}, 1),
        ({"tpot": 16.0}, 3),  # 60 ms for four tokens after the first
        ({"tpot": 14.0}, 1),
        ({"ttft": 30.0}, 2),  # a plain answer's first byte comes after 40 ms
        ({"latency": 60.0}, 1),
        ({"latency": 100.0, "gap": 50.0}, 2),
    ],
)
def test_a_good_request_meets_every_limit(slo: dict[str, float], met: int) -> None:
    goodput = service_figures(streamed(slo), Serving(), 0, np.zeros(0, np.int64)).goodput
    assert goodput is not None
    assert goodput.share == pytest.approx(met / 3)
    assert goodput.limits_ms == slo
