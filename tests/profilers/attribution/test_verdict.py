"""Verdicts: steady only near the median, inconclusive if the causes do not add up to the tail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.attribution.naming_rule import applicable
from latfix.profilers.attribution.noise_floors import _raised
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.attribution.verdict import judge
from latfix.profilers.causes import CAUSES
from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import CauseSummary
from latfix.run_record.run_meta import RunMeta
from latfix.settings import RunnerSettings
from tests.profilers.simulated_runs import simulate
from tests.records import cause_summary


def cause(name: str, tail_ms: float, excess_ms: float, *, named: bool = False) -> CauseSummary:
    interval = (0.8 * tail_ms, 1.2 * tail_ms)
    return cause_summary(name, tail_ms, tail_share=tail_ms / excess_ms, ci95_ms=interval, named=named, requests=10)


def tail(excess_ms: float, mean_ms: float) -> Tail:
    none = np.zeros(len(CAUSES))
    return Tail(
        requests=1000,
        inside=10,
        mean_ms=mean_ms,
        excess_ms=excess_ms,
        own_ms=none,
        propagated_ms=none,
        ci95_ms=np.zeros((len(CAUSES), 2)),
    )


def test_most_of_the_excess_is_mentioned_where_it_is_too_uncertain_to_name() -> None:
    verdict, sentence = judge(
        (cause("batching.padding", 440.0, 444.0),), tail(444.0, 454.0), {"p50": 10.0}, 99.0, 454.0
    )
    assert verdict == "inconclusive"
    assert "440 ms of the 444 ms" in sentence and "its interval, 352 ms to 528 ms, is too wide" in sentence


@pytest.mark.parametrize(
    ("p99_ms", "word"),
    [
        pytest.param(11.0, "steady", id="hardly above"),
        pytest.param(18.0, "steady", id="near"),
        pytest.param(454.0, "inconclusive", id="45 times the median"),
    ],
)
def test_steady_means_a_tail_near_the_median(p99_ms: float, word: str) -> None:
    excess = p99_ms - 10.0
    causes = (cause("host.contention", 0.9 * excess, excess), cause("unexplained", 0.1 * excess, excess))
    verdict, sentence = judge(causes, tail(excess, p99_ms), {"p50": 10.0}, 99.0, p99_ms)
    assert verdict == word
    assert ("steady" in sentence) == (word == "steady")


def test_noise_is_by_a_little_in_many_requests_only_where_it_is() -> None:
    def sentence(p99_ms: float, inside: int = 10, *, at_once: bool = False) -> str:
        excess = p99_ms - 10.0
        causes = (cause("host.contention", 0.9 * excess, excess), cause("unexplained", 0.1 * excess, excess))
        of = replace(tail(excess, p99_ms), inside=inside)
        return judge(causes, of, {"p50": 10.0}, 99.0, p99_ms, at_once=at_once)[1]

    assert "by a little in many requests" in sentence(30.0)
    for words in (sentence(454.0), sentence(30.0, 5), sentence(30.0, at_once=True)):
        assert "no fault stands out" in words and "by a little" not in words
    assert sentence(454.0, 5, at_once=True).endswith("in one moment that all 5 slow requests share.")


@pytest.mark.parametrize("share", [0.4, -0.4, -1.59])
def test_a_quarter_unexplained_is_inconclusive_with_either_sign(share: float) -> None:
    top = cause("batching.padding", (1 - share) * 50.0, 50.0, named=True)
    verdict, sentence = judge(
        (top, cause("unexplained", share * 50.0, 50.0)), tail(50.0, 60.0), {"p50": 10.0}, 99.0, 60.0
    )
    assert verdict == "inconclusive"
    assert ("the causes claim" in sentence) == (share < 0)


def test_a_fifth_unexplained_names_the_cause() -> None:
    causes = (cause("python.gc", 40.0, 50.0, named=True), cause("unexplained", 10.0, 50.0))
    assert judge(causes, tail(50.0, 60.0), {"p50": 10.0}, 99.0, 60.0)[0] == "python.gc"


def test_noise_is_part_of_a_cause() -> None:
    # 70 of 363 ms are a machine's noise: of a low end of 41 ms, 33 are left.
    assert _raised(21.0, 70.0, 363.0) < 41.0 < 21.0 + 70.0
    # Where most is noise, all of it must be exceeded.
    assert _raised(1.0, 8.0, 10.0) == 9.0
    assert _raised(1.0, 0.0, 0.0) == 1.0


def test_fixes_apply_to_the_run() -> None:
    every = tuple(dict.fromkeys(fix for each in CAUSES for fix in each.fixes))
    on_cpu = applicable(every, RunMeta(device="cpu", entry="adapter:Service"))
    assert {"quantize.fp8_dynamic", "fuse.tensorrt", "transfer.pinned"}.isdisjoint(on_cpu)
    assert {"quantize.int8_dynamic", "fuse.openvino", "batch.bucket"} <= set(on_cpu)
    of_file = applicable(every, RunMeta(device="cpu", entry="model.onnx"))
    assert not any(fix.startswith(("quantize.", "fuse.")) for fix in of_file) and "batch.bucket" in of_file
    on_gpu = applicable(every, RunMeta(device="cuda:0", entry="adapter:Service"))
    assert {"host.workers", "host.threads", "fuse.openvino", "cache.embeddings"}.isdisjoint(on_gpu)
    assert "quantize.int8_weight_only" not in on_gpu  # which refuses a GPU
    assert {"fuse.cudagraph", "quantize.int8_dynamic", "batch.size"} <= set(on_gpu)
    # A single worker has no routing, and a single operator thread waits for no other.
    alone = RunMeta(settings=RunnerSettings(workers=1), torch_threads=1)
    several = RunMeta(settings=RunnerSettings(workers=2), torch_threads=4)
    for fix in ("host.routing", "host.threads", "host.wait_policy"):
        assert fix not in applicable(every, alone) and fix in applicable(every, several)


@pytest.mark.parametrize(("median_ms", "words"), [(10.0, "take hardly longer"), (0.05, "take 0.0900 ms longer")])
def test_a_fast_service_does_not_take_hardly_longer(median_ms: float, words: str) -> None:
    verdict, sentence = judge((), tail(0.09, median_ms + 0.09), {"p50": median_ms}, 99.0, median_ms + 0.09)
    assert verdict == "steady" and words in sentence


@pytest.mark.parametrize(
    ("excess_ms", "words"), [(17.0, "than typical ones."), (110.0, "; 93.0 ms of every request is ")]
)
def test_a_steady_tail_s_cause_is_one_of_every_request_only_where_typical_ones_have_it(
    excess_ms: float, words: str
) -> None:
    """Slow requests take 213 ms, typical ones 196 ms; those that nothing delays as long as these, or much less."""
    top = cause("external.dependency", excess_ms, excess_ms, named=True)
    verdict, sentence = judge((top,), tail(excess_ms, 213.0), {"p50": 196.0}, 99.0, 211.0)
    assert verdict == "steady" and words in sentence


@pytest.mark.parametrize(("kind", "suggested"), [("replay", True), ("live", False)])
def test_replay_options_are_not_suggested_to_a_live_service(kind: str, suggested: bool) -> None:
    record = simulate(n=60, cold=400.0, meta={"source": {"kind": kind, "path": "x"}})
    notes = " ".join(diagnose(record, bootstrap=10).notes)
    assert "about 1,000 would do" in notes
    assert all((words in notes) == suggested for words in ("--repeat 17", "warmup_requests = 10"))


def test_the_number_of_requests_needed_is_round() -> None:
    record = simulate(n=60)
    for percentile, enough in ((90.0, "100"), (99.9, "10,000")):
        assert f"about {enough} would do" in " ".join(diagnose(record, percentile=percentile, bootstrap=10).notes)
