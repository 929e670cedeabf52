"""What the pictures draw: downsampled, but with the tail whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.reports.charts import chart_data as series
from latfix.reports.charts import run_charts
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE
from tests.records import zeros
from tests.reports.conftest import Session


def test_a_thinned_scatter_keeps_the_slowest_and_stays_small(large: RunRecord) -> None:
    points = series.scatter(large)
    latency = np.sort(large.latencies_ns() / 1e6)
    assert len(points.arrival_s) <= series.POINTS < points.total == len(latency)
    assert np.array_equal(np.sort(points.latency_ms)[-1000:], latency[-1000:])


def test_small_runs_are_drawn_whole_without_warm_up(ordinary: Session) -> None:
    record = ordinary[0]
    points = series.scatter(record)
    assert len(points.latency_ms) == points.total == len(record.latencies_ns())
    assert (record.requests["arrival_ns"] < 0).any()
    firsts = [points.arrival_s.min(), series.windows(record).edges_s[0], series.arrival_rate(record)[0][0]]
    assert min(firsts) >= 0


def test_the_percentile_curve_rises_and_ends_at_the_slowest(ordinary: Session) -> None:
    slower, latency, requests = series.percentile_curve(ordinary[0])
    assert (np.diff(latency) >= 0).all()
    assert (np.diff(slower) < 0).all()
    assert latency[-1] == ordinary[0].latencies_ns().max() / 1e6
    assert requests == ordinary[0].measured.sum()


def test_each_group_of_the_stage_profile_sums_to_its_mean_latency(ordinary: Session) -> None:
    record = ordinary[0]
    names, profile = series.stage_profile(record)
    latency = record.latencies_ns() / 1e6
    assert names[0] == "all requests"
    assert np.isclose(profile[0].sum(), latency.mean())
    slow = latency[latency >= np.percentile(latency, 99)]
    assert np.isclose(profile[names.index("slowest 1 %")].sum(), slow.mean())


def test_windows_find_the_pauses(ordinary: Session) -> None:
    windows = series.windows(ordinary[0])
    assert np.nanmax(windows.p99_ms) > 5 * np.nanmedian(windows.p99_ms)
    known = np.isfinite(windows.p99_ms)  # of a window that lost requests it is not
    assert np.all(windows.p50_ms[known] <= windows.p99_ms[known])


def test_the_arrival_rate_integrates_to_the_requests(ordinary: Session) -> None:
    edges, rate = series.arrival_rate(ordinary[0])
    assert np.isclose((rate * np.diff(edges)).sum(), np.count_nonzero(ordinary[0].measured))


def test_in_flight_counts_overlapping_requests(ordinary: Session) -> None:
    record = ordinary[0]
    rows = {"arrival_ns": [0, 10, 20, 1000], "latency_ns": [100, 100, 100, 5], "warmup": [0] * 4, "status": [0] * 4}
    changed = {name: np.array(values, dtype=np.int64) for name, values in rows.items()}
    _, inside = series.in_flight(replace(record, requests=record.requests | changed))
    assert inside.tolist() == [1, 2, 3, 1]


def test_every_series_survives_every_session(session: Session) -> None:
    draws: list[Callable[[RunRecord], Any]] = [series.scatter, series.windows, series.percentile_curve]
    for draw in (
        *draws,
        series.stage_profile,
        series.arrival_rate,
        series.in_flight,
        series.queue_depth,
        series.batch_sizes,
    ):
        draw(session[0])


def sampled_at(at: np.ndarray[Any, Any], sampled: dict[str, Any]) -> dict[str, Any]:
    """Samples of several series at the same times."""
    return {
        "t_ns": np.tile(at, len(sampled)),
        "series": np.repeat(np.array(list(sampled), dtype=object), len(at)),
        "value": np.concatenate(list(sampled.values())),
    }


def test_the_queue_is_drawn_with_its_peaks_and_batches_with_their_means(ordinary: Session) -> None:
    # GIVEN a queue that is empty but for one sample of a thousand, and batches of 1 and then of 5
    record, at = ordinary[0], np.arange(1000) * 10**7
    depth = np.where(at == at[500], 42.0, 0.0)
    batches = zeros(BATCH_DTYPE, 400)
    batches["close_ns"], batches["size"] = np.arange(400) * 10**7, np.repeat([1, 5], 200)
    batches["warmup"][:10], batches["size"][:10] = 1, 99
    known = replace(record, samples=sampled_at(at, {"runner.queue_depth": depth}), batches=batches)
    # WHEN
    seconds, queue = series.queue_depth(known)
    when, sizes = series.batch_sizes(known)
    # THEN the peak is drawn, and warm-up is not
    assert len(queue) <= 240 and queue.max() == 42 and seconds[queue.argmax()] == pytest.approx(5, abs=0.05)
    assert sizes[0] == 1 and sizes[-1] == 5 and sizes.max() == 5 and (np.diff(when) > 0).all()
    # AND a page shows both
    chart = run_charts.traffic_over_time(
        "x", series.arrival_rate(known), series.in_flight(known), (seconds, queue), (when, sizes)
    )
    assert "in the queue" in chart and "in a batch" in chart
    empty = series.queue_depth(record)
    assert "in the queue" not in run_charts.traffic_over_time(
        "x", series.arrival_rate(record), series.in_flight(record), empty, empty
    )


def test_charts_of_traffic_begin_with_the_first_request(ordinary: Session) -> None:
    """A run whose first request comes after a minute has no empty minute."""
    record, late = ordinary[0], 60 * 10**9
    rows = {**record.requests, "arrival_ns": record.requests["arrival_ns"] + late}
    at = np.arange(100) * 10**9
    known = replace(record, requests=rows, samples=sampled_at(at, {"runner.queue_depth": np.ones(100)}))
    first = float(rows["arrival_ns"][known.measured].min()) / 1e9
    begins = [series.arrival_rate(known)[0][0], series.in_flight(known)[0][0], series.queue_depth(known)[0][0]]
    assert begins == pytest.approx([first, first, first], abs=1.0)


def test_samples_are_means_of_spans_and_counters_their_slope(ordinary: Session) -> None:
    # GIVEN memory that doubles half way, a core and a half, one device's clock, and what is not drawn
    record = ordinary[0]
    last = int((record.requests["arrival_ns"] + record.requests["latency_ns"]).max())
    at = np.arange(0, last, 10_000_000)
    sampled = {
        "process.rss_bytes": np.where(at < last // 2, 1.0, 2.0) * 2**20,
        "process.cpu_ns": 1.5 * at,
        "nvml.2.sm_clock_mhz": np.full(len(at), 1410.0),
        "gil.wait_ns": np.ones(len(at)),
        "nvml.gpu_util": np.full(len(at), np.nan),
    }
    # AND a heap, page faults, tasks that waited for a core in a quarter of the time, and a quota that was in force
    sampled |= {
        "malloc.used_bytes": np.full(len(at), 3.0 * 2**20),
        "process.minflt": at / 1e9 * 70,
        "pressure.cpu_some_us": at / 1e3 * 0.25,
        "cgroup.throttled_ns": at * 0.1,
        "pressure.memory_some_us": np.zeros(len(at)),
    }
    samples = sampled_at(at, sampled)
    # WHEN
    panels = {
        axis: {label: values for label, _, values in lines}
        for axis, lines in series.machine_series(replace(record, samples=samples)).items()
    }
    # THEN
    assert list(panels) == ["memory, MiB", "heap, MiB", "page faults/s", "cores", "waiting, %", "clock, MHz"]
    assert set(panels["heap, MiB"]["in use"]) == {3.0}
    assert panels["page faults/s"]["minor"] == pytest.approx(70)
    assert panels["waiting, %"]["some task of the machine for a core"] == pytest.approx(25)
    assert panels["waiting, %"]["the service, for its quota"] == pytest.approx(10)
    assert len(panels["waiting, %"]) == 2, "what was always zero is not drawn"
    assert panels["memory, MiB"]["process"][0] == 1 and panels["memory, MiB"]["process"][-1] == 2
    assert panels["cores"]["used by the service"] == pytest.approx(1.5)
    assert set(panels["clock, MHz"]["SM, 2"]) == {1410.0}


def test_events_by_kind_are_the_longest_of_each(ordinary: Session) -> None:
    events = {
        "t_ns": np.arange(1000) * 10**6,
        "duration_ns": np.arange(1000),
        "kind": np.full(1000, "gc", dtype=object),
    }
    spans = series.event_spans(replace(ordinary[0], events=events))
    assert list(spans) == ["gc"] and len(spans["gc"]) == 300
    assert min(length for _, length in spans["gc"]) == 700e-9
