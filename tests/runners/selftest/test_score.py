"""Scores of single cases and their summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.cause_catalogue import EvidenceClass
from latfix.results.diagnosis import Diagnosis, Ledger, Slowest
from latfix.results.selftest_scoreboard import CaseScore, Scoreboard, Share
from latfix.runners.selftest.ground_truth import Truth
from latfix.runners.selftest.plan import make_case
from latfix.runners.selftest.score import least_ms, score_case
from latfix.runners.selftest.scoreboard import make_scoreboard
from tests.records import cause_summary

MS = 1_000_000
N = 200
STRUCK = (50, 120)
_MEASURED: tuple[EvidenceClass, ...] = ("measured",)


def _truth(causes: Mapping[str, float], *, natural_ms: float = 0.0, kept: int = 2) -> Truth:
    """A ground truth in which each cause struck two requests, which are the tail."""
    own = np.zeros((len(causes), N), dtype=np.int64)
    for k, ms in enumerate(causes.values()):
        own[k, list(STRUCK)] = int(ms * MS)
    tail = np.isin(np.arange(N), STRUCK)
    return Truth(
        causes=tuple(causes),
        index=np.arange(N),
        own=own,
        propagated=np.zeros((len(causes), N)),
        natural=np.where(tail, int(natural_ms * MS), 0),
        tail=tail,
        faults=dict.fromkeys(causes, 2),
        kept=dict.fromkeys(causes, kept),
    )


def _diagnosis(
    found: Mapping[str, float], named: tuple[str, ...] = (), *, width_ms: float = 1.0, gap_ns: int = 0
) -> Diagnosis:
    """A diagnosis that attributes the given milliseconds in the two tail requests."""
    ids = (*[cause for cause in found if cause != "unexplained"], "unexplained")
    own = np.zeros((len(ids), N), dtype=np.int64)
    for k, cause in enumerate(ids):
        own[k, list(STRUCK)] = int(found.get(cause, 0.0) * MS)
    latency = own.sum(axis=0) + 5 * MS + gap_ns
    summaries = [
        cause_summary(cause, ms, ci95_ms=(ms - width_ms, ms + width_ms), named=cause in named, requests=2)
        for cause, ms in sorted(found.items(), key=lambda pair: -pair[1])
    ]
    ledger = Ledger(
        request=np.arange(N),
        latency_ns=latency,
        reference_ns=5 * MS,
        causes=ids,
        own_ns=own,
        propagated_ns=np.zeros_like(own),
        classes=_MEASURED * len(ids),
    )
    return Diagnosis(
        workload="selftest",
        device="cpu",
        requests={"ok": N},
        latency_ms={"p50": 5.0},
        verdict=named[0] if named else "steady",
        sentence="",
        percentile=99.0,
        excess_ms=sum(found.values()),
        reference_ms=5.0,
        unexplained_ms=found.get("unexplained", 0.0),
        causes=tuple(summaries),
        throughput_rps=1.0,
        ledger=ledger,
    )


def _score(recipes: tuple[str, ...], truth: Truth, diagnosis: Diagnosis, neighbors: float | None = 0.0) -> CaseScore:
    return score_case(make_case(recipes, "medium", 1, 6.0), truth, diagnosis, neighbors=neighbors)


def _board(*cases: CaseScore, planned: int | None = None) -> Scoreboard:
    more: dict[str, Any] = {"seed": 1, "quick": True, "machine": {}, "typical_ms": 5.0, "seconds": 1.0}
    return make_scoreboard(cases, planned=len(cases) if planned is None else planned, not_injectable={}, **more)


def _measure(board: Scoreboard, id: str) -> Any:
    return next(measure for measure in board.measures if measure.id == id)


RIGHT = {"python.gc": 20.0, "unexplained": 1.0}


def test_a_right_diagnosis_scores_on_every_count() -> None:
    case = _score(("gc_model",), _truth({"python.gc": 20.0}), _diagnosis(RIGHT, ("python.gc",)))
    assert case.top == "python.gc" and case.top_right is True
    assert case.present == ("python.gc",) and case.wrong == () and case.held == {"python.gc": True}
    assert case.errors is not None and case.errors.median_ms == 0 and case.errors.within == case.errors.count == 2
    assert case.true_ms == {"python.gc": 20.0} and case.conservation_ns == 0 and case.counted
    board = _board(case)
    for id in ("top1_single", "precision", "recall", "request_error", "conservation"):
        assert _measure(board, id).met is True, id
    assert board.causes[0].top1 == Share(hits=1, of=1)


def test_a_wrong_cause_costs_top1_precision_recall_and_is_in_the_confusion() -> None:
    found = {"host.contention": 18.0, "unexplained": 3.0}
    case = _score(("gc_model",), _truth({"python.gc": 20.0}), _diagnosis(found, ("host.contention",)))
    assert case.top_right is False and case.wrong == ("host.contention",) and case.held == {"python.gc": False}
    board = _board(case)
    for id in ("top1_single", "precision", "recall", "request_error"):
        assert _measure(board, id).met is False, id
    unsummed = _score(("gc_model",), _truth({"python.gc": 20.0}), _diagnosis(RIGHT, gap_ns=3))
    assert unsummed.conservation_ns == 3 and _measure(_board(unsummed), "conservation").met is False
    scores = {score.cause: score for score in board.causes}
    assert scores["python.gc"].taken_for == {"host.contention": 1}
    assert scores["host.contention"].precision == Share(hits=0, of=1)
    assert "weak at python.gc" in board.sentence and "host.contention" in board.sentence


def test_the_error_is_judged_against_the_larger_of_both_bounds() -> None:
    truth = _truth({"python.gc": 20.0})
    near = _score(("gc_model",), truth, _diagnosis({"python.gc": 20.9, "unexplained": 0.0}))
    far = _score(("gc_model",), truth, _diagnosis({"python.gc": 21.1, "unexplained": 0.0}))
    assert near.errors is not None and near.errors.within == 2
    assert far.errors is not None and far.errors.within == 0
    assert far.errors.median_ms == pytest.approx(1.1)


def test_the_true_top_of_a_mix_is_that_with_most_milliseconds() -> None:
    truth = _truth({"external.dependency": 10.0, "python.gc": 30.0})
    wrong = _diagnosis({"external.dependency": 30.0, "python.gc": 10.0, "unexplained": 0.0})
    case = _score(("sleep_prepare", "gc_model"), truth, wrong)
    assert case.right_tops == ("python.gc",) and case.top_right is False
    close = _truth({"external.dependency": 28.0, "python.gc": 30.0})
    assert _score(("sleep_prepare", "gc_model"), close, wrong).top_right is True
    board = _board(case)
    assert _measure(board, "top1_mixed").met is False and _measure(board, "top1_single").count == 0


def test_arrivals_can_be_the_true_top() -> None:
    truth = _truth({"python.gc": 5.0}, natural_ms=20.0)
    case = _score(("gc_model",), truth, _diagnosis({"traffic.burst": 20.0, "python.gc": 5.0, "unexplained": 0.0}))
    assert case.right_tops == ("traffic.burst",) and case.top_right is True


def test_a_cause_too_small_in_the_tail_need_not_be_named() -> None:
    found = {"external.dependency": 40.0, "python.gc": 2.0, "unexplained": 0.0}
    truth = _truth({"external.dependency": 40.0, "python.gc": 2.0})
    case = _score(("sleep_prepare", "gc_model"), truth, _diagnosis(found, ("external.dependency",)))
    assert case.present == ("external.dependency",)


def test_faults_beyond_the_percentile_are_judged_by_the_slowest_requests() -> None:
    # GIVEN a tail full of contention, and a wait that most of the ten slowest requests show
    truth = _truth({"external.dependency": 500.0})
    everything = replace(truth, tail=np.ones(N, dtype=np.bool_))
    found = _diagnosis({"host.contention": 3.0, "external.dependency": 1.0}, ("host.contention",))
    slowest = Slowest(
        requests=2, least_ms=505.0, most_ms=505.0, excess_ms=500.0, causes_ms={"external.dependency": 490.0}
    )
    case = _score(("giant",), everything, replace(found, largest=slowest))
    assert case.top == "external.dependency" and case.top_right is True and case.excess_ms == 500.0
    assert case.true_ms == {"external.dependency": pytest.approx(2 * 500.0 / 10)}, "the mean of the ten slowest"
    assert case.held == {} and case.present == (), "the ten slowest have neither intervals nor names"
    assert not case.weak
    unseen = _score(("giant",), everything, replace(found, largest=None))
    assert unseen.top == "" and unseen.top_right is False


def test_weak_faults_have_their_own_bar() -> None:
    strong = _score(("gc_model",), _truth({"python.gc": 20.0}), _diagnosis(RIGHT, ("python.gc",)))
    weak = replace(strong, excess_ms=1.9 * strong.p50_ms, top="host.slowdown", top_right=False)
    board = _board(strong, *[weak] * 2)
    assert not strong.weak and weak.weak
    assert (_measure(board, "top1_single").count, _measure(board, "top1_single").met) == (1, True)
    assert (_measure(board, "top1_weak").count, _measure(board, "top1_weak").met) == (2, False)
    mixed = replace(weak, group="mixed", top_right=True)
    assert _measure(_board(*[mixed] * 9, weak), "top1_weak").met is True
    assert _measure(_board(mixed), "top1_mixed").count == 0


def test_faults_too_small_to_count_drop_the_case() -> None:
    case = _score(("gc_model",), _truth({"python.gc": 0.2}, kept=0), _diagnosis(RIGHT, ("python.gc",)))
    assert not case.counted and case.dropped == case.faults == 2 and case.top_right is None
    board = _board(case)
    assert _measure(board, "top1_single").count == 0 and len(board.cases) == 1
    assert least_ms(5.0) == 1.0 and least_ms(40.0) == 4.0


def test_a_quiet_run_that_names_a_fault_is_a_false_alarm() -> None:
    found = {"host.contention": 1.0, "traffic.burst": 3.0, "input.size": 1.0, "unexplained": 0.0}
    named = ("traffic.burst", "host.contention", "input.size")
    case = _score(("quiet_low",), _truth({}), _diagnosis(found, named))
    assert case.alarms == named and case.traffic_alarms == ("traffic.burst",)
    assert case.top_right is None and case.counted
    assert _measure(_board(case), "false_alarms").met is False
    # Arrivals that make requests wait may be named; the same without such waits may not.
    waiting = _score(("quiet_low",), _truth({}, natural_ms=3.0), _diagnosis(found, ("traffic.burst",)))
    assert _measure(_board(waiting), "false_alarms").met is True
    unfounded = _score(("quiet_low",), _truth({}), _diagnosis(found, ("traffic.burst",)))
    assert _measure(_board(unfounded), "false_alarms").met is False


def test_causes_of_neighbors_are_not_judged() -> None:
    found = {"host.contention": 60.0, "python.gc": 20.0, "unexplained": 0.0}
    diagnosis = _diagnosis(found, ("host.contention", "python.gc"))
    case = _score(("gc_model",), _truth({"python.gc": 20.0}), diagnosis, neighbors=0.3)
    assert case.disturbed and case.top == "python.gc" and case.top_right is True and case.wrong == ()
    alone = _score(("gc_model",), _truth({"python.gc": 20.0}), diagnosis, neighbors=0.001)
    assert alone.top_right is False and alone.wrong == ("host.contention",)
    hogs = _score(("hogs",), _truth({}), diagnosis, neighbors=0.3)
    assert hogs.top == "host.contention"


def test_threads_of_a_service_compete_for_the_lock_and_for_cores_if_it_has_fewer() -> None:
    found = {"host.contention": 15.0, "python.gil": 14.0, "memory.page_faults": 13.0, "unexplained": 0.0}
    truth, diagnosis = _truth({"memory.page_faults": 13.0}), _diagnosis(found, ("host.contention", "python.gil"))

    def scored(recipe: str, known: Truth, cores: int) -> CaseScore:
        return score_case(make_case((recipe,), "small", 1, 6.0), known, diagnosis, neighbors=0.0, cores=cores)

    few, enough = scored("held_threads", truth, 2), scored("held_threads", truth, 4)
    assert few.top_right is True and few.wrong == ()
    assert enough.top == "host.contention" and enough.top_right is False and enough.wrong == ("host.contention",)
    assert scored("faults_prepare", truth, 2).wrong == ("host.contention", "python.gil"), "two threads on two cores"
    assert scored("quiet_threads", _truth({}), 2).alarms == ()
    assert scored("quiet_threads", _truth({}), 4).alarms == ("host.contention",)
    # Where contention is the injected fault it is judged.
    assert scored("hogs_threads", _truth({}), 2).top == "host.contention"


def test_an_unlisted_cause_must_stay_unexplained() -> None:
    truth = _truth({"unexplained": 20.0})
    kept = _score(("sleep_model",), truth, _diagnosis({"unexplained": 19.0}))
    lost = _score(("sleep_model",), truth, _diagnosis({"external.dependency": 15.0, "unexplained": 5.0}))
    assert kept.unexplained == pytest.approx(0.95) and kept.top_right is True and kept.present == ()
    assert lost.unexplained == pytest.approx(0.25) and lost.top_right is False
    assert _measure(_board(kept), "unlisted").met is True
    assert _measure(_board(lost), "unlisted").met is False


def test_coverage_needs_many_intervals_to_be_too_high() -> None:
    good = _score(("gc_model",), _truth({"python.gc": 20.0}), _diagnosis(RIGHT, ("python.gc",)))
    bad = replace(good, held={"python.gc": False})
    assert _measure(_board(good), "coverage").met is None
    assert _measure(_board(bad), "coverage").met is False
    assert _measure(_board(*[good] * 95, *[bad] * 5), "coverage").met is True
    assert _measure(_board(*[good] * 120), "coverage").met is False


def test_the_document_holds_every_case_and_measure() -> None:
    case = _score(("gc_model",), _truth({"python.gc": 20.0}), _diagnosis(RIGHT, ("python.gc",)))
    board = _board(case, planned=2)
    document = board.to_json()
    assert document["schema"] == "latfix.selftest/1" and board.interrupted
    assert document["cases"][0]["true_ms"] == {"python.gc": 20.0}
    assert {measure["id"] for measure in document["measures"]} >= {"top1_single", "coverage", "unlisted"}
    top = document["measures"][0]
    assert top["ci95"][0] < top["value"] == 1.0 and top["count"] == 1
    nothing = _board(planned=5)
    assert nothing.sentence.startswith("No case was scored")
    assert all(measure.met is None for measure in nothing.measures)
