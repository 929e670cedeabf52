"""Where and when the unexplained part of latencies arose."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.remainder import remainder_words, rhythm
from latfix.reports.answer import diagnosis_answer
from latfix.reports.terminal.diagnosis import render_diagnosis

N, VALUES = 2_000, ("a", "b", "c", "d")


def words(seed: int = 1, *, slow: str = "", begin: int = 0, length: int = N, apart_ms: int = 10) -> str:
    """A remainder of uneven requests that come regularly, of which ``length`` from ``begin`` are slower, or 30 % of
    those with the value ``slow``."""
    rng = np.random.default_rng(seed)
    rest, label = rng.lognormal(15, 0.8, N), rng.integers(0, len(VALUES), N)
    chosen = (label == VALUES.index(slow)) & (rng.random(N) < 0.3) if slow else np.zeros(N, bool)
    if length < N:
        chosen[begin : begin + length] = True
    rest[chosen] *= 20
    arrival = np.arange(N) * apart_ms * 1_000_000
    return remainder_words(rest.astype(np.int64), 0.02, arrival, {"server": (label, VALUES)})


def test_a_value_that_most_of_the_slowest_have_is_named() -> None:
    assert "of the slowest have the server 'c' (2" in words(slow="c")


@pytest.mark.parametrize("begin", [0, 700])
def test_a_few_slow_requests_one_after_the_other_have_their_time(begin: int) -> None:
    text = words(begin=begin, length=60)
    first, last = (float(word) for word in text.partition("came from ")[2].rstrip(" s.").split(" s to "))
    assert begin / 100 <= first < last < (begin + 60) / 100 and "server" not in text


def test_times_are_exact_to_the_length_of_what_they_bound() -> None:
    assert "came from 7,090 s to 7,360 s" in words(begin=700, length=60, apart_ms=10_000)


def test_a_longer_time_is_a_level() -> None:
    assert "it is larger from" in words(begin=700, length=600)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_stands_out_in_chance(seed: int) -> None:
    assert words(seed) == "nothing in the recording accounts for it."


@pytest.mark.parametrize(
    ("slow", "found"),
    [
        (lambda k, _: k % 60 == 7, "1 slow request every 60 requests"),
        (lambda k, _: (k % 200 < 6) & (k // 200 != 3), "6 slow requests every 200 requests"),
        (lambda _, s: np.diff(s // 4.0, prepend=0) > 0, "1 slow request every 4.00 s"),
        (lambda k, s: (s % 12 < 2) | (k % 97 == 5), "30 slow requests every 243 requests, or 12.0 s"),
    ],
    ids=["each", "in turns, one missed", "by the clock", "a job, and single ones between"],
)
def test_a_rhythm_of_slow_requests_is_found(slow: Callable[[Ints, Floats], Bools], found: str) -> None:
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(0.05, N))
    rest = rng.lognormal(15, 0.3, N) + np.where(slow(np.arange(N), arrival), 2e8, 0)
    assert rhythm(rest.astype(np.int64), (arrival * 1e9).astype(np.int64)) == found


def test_chance_has_no_rhythm() -> None:
    rng = np.random.default_rng(4)
    for _ in range(200):
        arrival = np.cumsum(rng.exponential(5e7, N)).astype(np.int64)
        turns = np.repeat(rng.random(N // 4) < 0.01, 4)  # alone, or four at a time
        rest = rng.lognormal(15, 0.3, N) + np.where(rng.choice([turns, rng.random(N) < 0.01]), 2e8, 0)
        assert rhythm(rest.astype(np.int64), arrival) == ""
    assert rhythm(np.zeros(N, np.int64), None) == ""


def test_times_in_whole_seconds_have_no_rhythm_of_their_own() -> None:
    rng = np.random.default_rng(6)
    for _ in range(100):
        rest = rng.lognormal(17, 0.3, N).astype(np.int64)
        arrival = np.cumsum(rng.exponential(0.02, N)).astype(np.int64) * 10**9 - rest
        order = np.argsort(arrival, kind="stable")
        assert rhythm(rest[order], arrival[order], resolution_ns=10**9) == ""


def test_a_longer_rhythm_is_found_in_whole_seconds() -> None:
    arrival = np.arange(N) // 10 * 10**9
    rest = np.where(arrival // 10**9 % 20 == 3, 2 * 10**8, 10**6)
    assert rhythm(rest, arrival, resolution_ns=10**9).endswith("every 200 requests, or 20.0 s")


def test_most_requests_are_no_slow_ones_among_others() -> None:
    rng = np.random.default_rng(7)
    late = np.concatenate([rng.lognormal(15, 0.3, N // 2), np.linspace(1e9, 7e9, N // 2)]).astype(np.int64)
    arrival = np.cumsum(rng.exponential(5e7, N)).astype(np.int64)
    assert rhythm(late, arrival) == ""
    assert rhythm(np.where(np.arange(N) % 5 > 1, late[:1], 1), None) == ""


def test_the_turn_of_a_slow_server_is_no_rhythm() -> None:
    rng = np.random.default_rng(8)
    server, rest = np.arange(N) % 4, rng.lognormal(15, 0.3, N) + np.where(rng.random(N) < 0.06, 6e7, 0)
    rest[server == 2] += 2e8
    labels = {"server": (server, VALUES)}
    assert rhythm(rest.astype(np.int64), None) == "1 slow request every 4 requests"
    assert rhythm(rest.astype(np.int64), None, labels) == ""
    # AND another server than by turns does not hide one
    rest = rng.lognormal(15, 0.3, N) + np.where(np.arange(N) % 60 == 6, 2e8, 0)
    assert rhythm(rest.astype(np.int64), None, labels) == "1 slow request every 60 requests"


def test_a_wait_behind_slow_requests_is_not_called_unexplained(tmp_path: Path) -> None:
    # GIVEN a log of one first-come, first-served server, of which six in 400 requests take 250 ms longer
    rng = np.random.default_rng(5)
    arrival, free, rows = np.cumsum(rng.exponential(0.05, 2 * N)), 0.0, ["ts,duration_ms"]
    for k, at in enumerate(arrival.tolist()):
        free = max(at, free) + rng.uniform(0.015, 0.025) + 0.25 * (k % 400 < 6)
        rows.append(f"{1.7e9 + at:.4f},{1e3 * (free - at):.2f}")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(rows))
    # WHEN
    found = diagnose_recording(path, ReadOptions())
    answer = diagnosis_answer(found)
    lines = {line.label: line.words for line in answer.lines}
    # THEN the wait is told from what is slow itself, with its rhythm, and the times are fine enough
    rest = found.causes[0]
    assert rest.cause == "unexplained" and rest.propagated_ms > 5 * rest.own_ms
    assert "of it is waiting behind requests whose own service took longer" in answer.headline
    assert re.search(r"slow themselves take about 2[67]\d ms, typical ones (19|20)\.\d ms", lines["unexplained"])
    assert "6 slow requests every 400 requests" in lines["unexplained"]
    assert "queue" not in lines["next step"] and "finer" not in lines["next step"]
    # AND the columns' roles are on the screen
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(render_diagnosis(found, folder=None))
    assert "columns: latency = duration_ms, arrival = ts" in console.export_text()


@pytest.mark.parametrize("column", ["upstream_addr", "pod", "server_id"])
def test_the_slow_server_of_four_is_in_the_answer(tmp_path: Path, column: str) -> None:
    rng = np.random.default_rng(2)
    rows = [
        f"{k / 50:.3f},{20 * rng.lognormal(0, 0.2) * (6 if k % 4 == 2 else 1):.3f},10.0.0.{k % 4}" for k in range(N)
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([f"arrival_s,latency_ms,{column}", *rows]))
    answer = diagnosis_answer(diagnose_recording(path, ReadOptions()))
    line = next(line.words for line in answer.lines if line.label == "unexplained")
    words = "100 % of the slowest have the server '10.0.0.2' (25.0 % of all requests)"
    assert words in line and f"the median: {words}; slow requests exceed" in answer.headline
    assert answer.lines[-1].words.startswith("Look at the server '10.0.0.2'")


def test_the_next_step_is_to_read_the_column_that_a_note_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    slow = np.where(rng.random(N) < 0.03, 500, 0)
    rows = [f"{k / 50:.3f},{20 + slow[k] + rng.uniform(0, 5):.3f},{slow[k] + rng.uniform():.3f}" for k in range(N)]
    path = tmp_path / "a log.csv"
    path.write_text("\n".join(["arrival_s,latency_ms,db_ms", *rows]))
    line = diagnosis_answer(diagnose_recording(path, ReadOptions())).lines[-1]
    assert line.is_command and line.words == f"latfix diagnose '{path}' --map db_ms=db_ms"


def test_a_steady_percentile_does_not_hide_longer_requests_beyond_it(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{k},{300 if k % 50 == 7 else 10 + k % 3 / 10}" for k in range(600)]
    path.write_text("\n".join(["arrival_s,latency_ms", *rows]))
    sentence = diagnose_recording(path, ReadOptions()).sentence
    assert "p95" in sentence and "steady, although the requests beyond take" in sentence


def test_a_single_request_has_no_rate_and_shares_are_round(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("arrival_s,latency_ms\n1,20\n")
    assert diagnose_recording(path, ReadOptions()).to_json()["throughput_rps"] is None
    rng = np.random.default_rng(1)
    for _ in range(5):
        rows = [f"{k},{each}" for k, each in enumerate((20 * rng.lognormal(0, 1, 300)).tolist())]
        path.write_text("\n".join(["arrival_s,latency_ms", *rows]))
        assert [each.tail_share for each in diagnose_recording(path, ReadOptions()).causes] == [1.0]
