"""Where and when the unexplained part of latencies arose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.remainder import remainder_words
from latfix.reports.answer import diagnosis_answer

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


@pytest.mark.parametrize("column", ["upstream_addr", "pod", "server_id"])
def test_the_slow_server_of_four_is_in_the_answer(tmp_path: Path, column: str) -> None:
    rng = np.random.default_rng(2)
    rows = [
        f"{k / 50:.3f},{20 * rng.lognormal(0, 0.2) * (6 if k % 4 == 2 else 1):.3f},10.0.0.{k % 4}" for k in range(N)
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([f"arrival_s,latency_ms,{column}", *rows]))
    lines = diagnosis_answer(diagnose_recording(path, ReadOptions())).lines
    line = next(line.words for line in lines if line.label == "unexplained")
    assert "100 % of the slowest have the server '10.0.0.2' (25.0 % of all requests)" in line


def test_a_steady_percentile_does_not_hide_longer_requests_beyond_it(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{k},{300 if k % 50 == 7 else 10 + k % 3 / 10}" for k in range(600)]
    path.write_text("\n".join(["arrival_s,latency_ms", *rows]))
    sentence = diagnose_recording(path, ReadOptions()).sentence
    assert "p95" in sentence and "steady, although the requests beyond take" in sentence
