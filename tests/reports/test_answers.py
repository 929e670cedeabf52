"""The answer of a comparison: one result, from its gates where they decide, and one figure for how much more."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from latfix.gates.evaluate import GateResult
from latfix.gates.latency_change import LatencyChange
from latfix.gates.syntax import parse_gate
from latfix.lower_bound import AtLeast
from latfix.reports.answer import Answer, comparison_answer, diagnosis_answer, optimization_answer, trial_answer
from latfix.reports.ci.ci_summary import read_summary
from latfix.reports.ci.github_annotations import annotation_lines
from latfix.reports.ci.junit import junit_xml
from latfix.reports.ci.markdown import markdown
from latfix.reports.comparison_rows import comparison_change
from latfix.reports.side_effects import side_effect_words
from latfix.reports.terminal.diagnosis import render_diagnosis
from latfix.reports.vocabulary import Severity
from latfix.results.comparison import Comparison, Trial, TriedIdea, compare_records
from latfix.results.diagnosis import Advice, Source
from latfix.results.optimization import BaselineVerdict, Optimization
from latfix.statistics.decision import RatioEstimate
from tests.reports.conftest import Session, printed


@pytest.fixture
def undecided(ordinary: Session) -> Comparison:
    found = compare_records(ordinary[0], ordinary[0])
    return replace(found, verdict="undecided", more_rounds=21, same_run=False)


def gate(passed: bool | None, rounds: int = 0, *, of: Comparison) -> GateResult:
    requests = rounds * sum(of.after.requests.values()) or None
    return GateResult(
        gate=parse_gate("p99<200ms"), value=1.0, limit=200.0, passed=passed, reason="", more_requests=requests
    )


def words(answer: Answer, label: str) -> str:
    return next((line.words for line in answer.lines if line.label == label), "")


@pytest.mark.parametrize(
    ("outcomes", "word", "severity"),
    [
        ((False, None), "Gate failed", "bad"),
        ((True, None), "Undecided", "warn"),
        ((True,), "Gates passed", "good"),
        ((), "Undecided", "warn"),
    ],
)
def test_the_headline_is_the_result_of_the_gates(
    outcomes: tuple[bool | None, ...], word: str, severity: Severity, undecided: Comparison
) -> None:
    found = undecided.gated([gate(passed, of=undecided) for passed in outcomes])
    answer = comparison_answer(found)
    assert answer.headline.startswith(f"{word}: p99 ") and answer.severity == severity
    assert f"— {word.lower()}\n" in markdown(read_summary(found.to_json(), command="gate", workload="w"))


@pytest.mark.parametrize(
    ("outcomes", "about"),
    [
        ({"p50": False, "p90": None}, "p50"),
        ({"p50": None, "p90": True}, "p50"),
        ({"p50": False, "p99": False}, "p99"),
        ({"p50": True}, "p99"),
        ({"max": False}, "p99"),  # its ratio is not known
    ],
)
def test_the_headline_is_about_the_latency_whose_gate_did_not_pass(
    outcomes: dict[str, bool | None], about: str, undecided: Comparison
) -> None:
    gates = [
        replace(gate(passed, of=undecided), gate=parse_gate(f"{metric}<200ms")) for metric, passed in outcomes.items()
    ]
    answer = comparison_answer(undecided.gated(gates))
    assert f": {about} " in answer.headline and undecided.judged == "p99"


def test_the_next_step_is_what_the_most_demanding_gate_needs(undecided: Comparison) -> None:
    gated = undecided.gated([gate(None, 132, of=undecided), gate(None, 191, of=undecided), gate(True, of=undecided)])
    for found, more in ((undecided, 21), (gated, 191)):
        expected = f"about {more} more rounds of both"
        assert words(comparison_answer(found), "next step").startswith(expected)
        steps = {
            by: words(comparison_answer(replace(found, more_by=by)), "next step") for by in ("--rounds", "--budget")
        }
        assert steps["--rounds"] == f"--rounds {more + 1}: {expected} would decide it"
        assert steps["--budget"] == f"a larger --budget: {expected} would decide it"
        timed = replace(found, more_by="--budget", round_s=6.0)
        assert words(comparison_answer(timed), "next step").startswith(
            f"--budget {math.ceil((more + 1) / 10)}m: about"
        )
    assert not words(comparison_answer(undecided.gated([gate(False, of=undecided)])), "next step")


@pytest.mark.parametrize(
    ("start_s", "words_of"),
    [
        ((0.0167, 0.414), "none in mean, p50, p90, p95, throughput"),
        ((0.414, 0.414), "none in mean, p50, p90, p95, throughput, start-up"),
        ((0.414, 0.98), "start-up 0.414 s → 0.980 s"),
    ],
)
def test_a_start_that_grew_is_never_among_what_did_not(
    start_s: tuple[float, float], words_of: str, undecided: Comparison
) -> None:
    """Starts vary, so growth by less than half a second is no side effect."""
    before, after = (
        replace(arm, start_s=s) for arm, s in zip((undecided.before, undecided.after), start_s, strict=True)
    )
    change = comparison_change(replace(undecided, before=before, after=after))
    assert side_effect_words(change)[0] == words_of


def test_a_figure_that_restarts_may_explain_is_not_called_insignificant(undecided: Comparison) -> None:
    mean = RatioEstimate(value=1.69, lo=1.55, hi=1.84, decision=(0.7, 2.5))
    answer = comparison_answer(replace(undecided, ratio={**undecided.ratio, "mean": mean}))
    for label in ("mean", "side effects"):
        assert "with so few rounds, restarts alone may differ by as much" in words(answer, label)
    assert "not significant" not in words(answer, "side effects")


def test_a_comparison_without_the_name_of_its_workload_has_no_empty_one_in_its_titles(undecided: Comparison) -> None:
    summary = read_summary(undecided.to_json(), command="compare")
    assert markdown(summary).startswith("## latfix compare — undecided\n")
    assert any("title=latfix compare::" in line for line in annotation_lines(summary))


def test_junit_has_no_empty_property(undecided: Comparison) -> None:
    summary = read_summary(undecided.to_json(), command="gate", workload="w")
    assert 'value=""' not in junit_xml(summary, started="2026-01-02T03:04:05", seconds=1.0, host="x")


def test_a_ratio_of_lost_percentiles_has_no_words_in_the_headline(undecided: Comparison) -> None:
    lost = RatioEstimate(value=math.nan, lo=math.nan, hi=math.nan, lost=True)
    after = replace(undecided.after, latency_ms={**undecided.after.latency_ms, "p99": AtLeast(23.5)})
    answer = comparison_answer(replace(undecided, after=after, ratio={**undecided.ratio, "p99": lost}))
    assert answer.headline.endswith("→ > 23.5 ms")
    change = comparison_change(
        replace(undecided, judged="p95", after=after, ratio={**undecided.ratio, "p99": lost, "p95": lost})
    )
    assert "()" not in change.sentence() and "–" not in change.sentence()
    words_of, _ = side_effect_words(change)
    assert "p90" in words_of and "p99," not in words_of, "nothing is known of a lost percentile"


def test_means_of_other_shares_of_the_requests_are_not_called_worse(undecided: Comparison) -> None:
    """A service that lost the slow half of its requests has the lower mean."""
    mean = RatioEstimate(value=1.69, lo=1.55, hi=1.84)
    before, after = replace(undecided.before, requests={"ok": 50, "timeout": 50}), undecided.after
    answer = comparison_answer(replace(undecided, before=before, ratio={**undecided.ratio, "mean": mean}))
    assert "of requests that ended ok: 50 % before, 100 % after" in words(answer, "mean")
    assert "mean" not in words(answer, "side effects")
    answer = comparison_answer(replace(undecided, after=after, ratio={**undecided.ratio, "mean": mean}))
    assert "ended ok" not in words(answer, "mean") and "mean" in words(answer, "side effects")


def test_an_open_interval_is_in_the_markdown(ordinary: Session) -> None:
    found = replace(ordinary[1], latency_ci95_ms={**ordinary[1].latency_ci95_ms, "p99": (16.5, math.inf)})
    assert "| ≥ 16.5 |" in markdown(read_summary(found.to_json(), command="diagnose", workload="w"))


@pytest.mark.parametrize(
    ("bounds", "known"),
    [((0.0, math.inf), ""), ((16.5, math.inf), "at least 16.5 ms, "), ((0.0, 40.0), "up to 40.0 ms, ")],
)
def test_an_interval_that_bounds_nothing_is_not_shown(
    bounds: tuple[float, float], known: str, ordinary: Session
) -> None:
    """As of three requests."""
    found = replace(ordinary[1], latency_ci95_ms={"p99": bounds})
    shown = words(diagnosis_answer(found), "95 % interval")
    assert shown.startswith(known) and bool(shown) == bool(known)


def test_what_is_known_of_unexplained_time_behind_an_address_is_shown(ordinary: Session) -> None:
    found = ordinary[1]
    rest = replace(
        found.causes[0], cause="unexplained", tail_share=0.8, evidence="It stood still 8 times.", named=False
    )
    behind = replace(found, causes=(rest,), source=Source(kind="http", path="http://h"))
    (line,) = (line for line in diagnosis_answer(behind).lines if line.label == "unexplained")
    assert line.words == "80 % of the tail's excess: It stood still 8 times"
    replayed = replace(behind, source=None)
    assert not words(diagnosis_answer(replayed), "unexplained"), "nothing but its parts is known"
    slept = replace(rest, evidence="No probe accounts for it: 9 ms is its own; 8 waits are one sleep of 30.0 ms.")
    answer = diagnosis_answer(replace(replayed, causes=(slept,)))
    assert words(answer, "unexplained") == "80 % of the tail's excess: 8 waits are one sleep of 30.0 ms"


@pytest.mark.parametrize(
    ("culprit", "told"),
    [
        ("stress (process 77), 0.90 cores", False),
        ("stress (process 77), 0.90 cores; cc1 (process 9), 0.30 cores", True),
    ],
)
def test_who_used_the_cores_is_said_once(culprit: str, told: bool, ordinary: Session) -> None:
    """The warning has cores over the run, the cause those while the service waited."""
    hog = "others used 1.2 cores (stress (process 77), 1.2 cores), and the service waited"
    named, *others = ordinary[1].causes
    first = replace(named, cause="host.contention")
    found = replace(ordinary[1], causes=(replace(first, culprit=culprit), *others), disturbed=hog)
    assert ("cores used by" in words(diagnosis_answer(found), "why")) == told
    nobody = replace(first, culprit="no process that is visible from here")
    assert "cores used by no process" in words(diagnosis_answer(replace(found, causes=(nobody,))), "why")
    assert "cores used by stress" in words(diagnosis_answer(replace(found, disturbed="")), "why")


@pytest.mark.parametrize(
    ("told_by", "end"),
    [("its program java", "(against python.gc; Java recognized by its program java)"), ("", "(against python.gc)")],
)
def test_advice_says_how_the_server_was_recognized_unless_it_goes_by_its_own_name(
    told_by: str, end: str, ordinary: Session
) -> None:
    advice = Advice(server="Java", told_by=told_by, cause="python.gc", change="-XX:+UseZGC", evidence="")
    answer = diagnosis_answer(replace(ordinary[1], advice=(advice,)))
    assert words(answer, "try") == f"Java: -XX:+UseZGC {end}"


def test_a_run_compared_with_itself_is_called_that(ordinary: Session) -> None:
    found = compare_records(ordinary[0], ordinary[0])
    assert found.same_run and Comparison.from_json(found.to_json()).same_run
    answer = comparison_answer(found.gated([gate(True, of=found)]))
    assert answer.headline == "The same run, compared with itself: p99 396 ms"
    assert [line.label for line in answer.lines] == ["gates", "next step"]


def test_an_optimization_without_a_final_replay_says_how_to_gate(improved: Optimization) -> None:
    alone = replace(improved, rounds=0, gates=())
    answer = optimization_answer(alone, workload="w", plan="p")
    assert words(answer, "gates") == "none set; to pass or fail this in CI, add --gate 'p99<420ms'"


@pytest.mark.parametrize("rounds", [3, 0])
def test_an_undecided_plan_is_decided_by_resuming_its_search(rounds: int, improved: Optimization) -> None:
    found = replace(improved, verdict="inconclusive", rounds=rounds)
    answer = optimization_answer(found, workload="w", plan="my o/plan.toml")
    assert words(answer, "next step") == "latfix optimize w --resume 'my o' --budget 15m"
    assert answer.lines[-1].words == "with the other options of this run, if it had any"
    proved = optimization_answer(improved, workload="w", plan="o/plan.toml")
    assert words(proved, "next step") == "latfix diagnose w --plan o/plan.toml"


@pytest.mark.parametrize(
    ("limit_ms", "outcome", "severity"),
    [(450.0, "met", "good"), (200.0, "missed", "bad"), (390.0, "undecided", "warn")],
)
def test_the_objective_is_judged_by_the_interval(
    limit_ms: float, outcome: str, severity: Severity, ordinary: Session
) -> None:
    """p99 is 361 ms, its interval 325 to 397 ms."""
    answer = diagnosis_answer(replace(ordinary[1], slo_ms=limit_ms))
    (line,) = (line for line in answer.lines if line.label == "objective")
    assert line.words.startswith(f"p99 361 ms, limit {limit_ms:.0f} ms: {outcome}") and line.severity == severity
    assert (", 95 % interval " in line.words and "would decide" in line.words) == (outcome == "undecided")
    assert words(answer, "gates").endswith(f"add --gate 'p99<{limit_ms:.0f}ms'")
    summary = read_summary(replace(ordinary[1], slo_ms=limit_ms).to_json(), command="diagnose", workload="w")
    assert f"**objective** p99 361 ms, limit {limit_ms:.0f} ms: {outcome}" in markdown(summary)


def test_no_objective_is_judged_without_a_limit(ordinary: Session, improved: Optimization) -> None:
    assert not words(diagnosis_answer(ordinary[1]), "objective")
    other = replace(improved, objective={"percentile": 99.0, "slo_ms": 150.0}, judged="mean")
    assert not words(optimization_answer(other, workload="w", plan="p"), "objective"), (
        "the limit is on another figure"
    )


def test_the_objective_of_an_optimization_is_about_the_settings_that_stay(improved: Optimization) -> None:
    found = replace(improved, objective={"percentile": 99.0, "slo_ms": 150.0}, rounds=5, gates=())
    answer = optimization_answer(found, workload="w", plan="p")
    assert words(answer, "objective") == "p99 98.0 ms, limit 150 ms: met"
    assert words(answer, "gates").endswith("add --gate 'p99<150ms'")
    refuted = optimization_answer(replace(found, changes={}), workload="w", plan="p")
    assert words(refuted, "objective") == "p99 412 ms, limit 150 ms: missed"


def test_the_cause_is_that_of_the_objectives_percentile(improved: Optimization) -> None:
    baseline = BaselineVerdict(verdict="python.gc", sentence="")
    found = replace(improved, diagnosis=baseline, objective={"percentile": 95.0})
    assert "; main cause of p95 before: python.gc" in words(optimization_answer(found, workload="w", plan="p"), "why")


def test_every_change_is_explained_in_the_answer_of_a_trial(undecided: Comparison) -> None:
    changes = [
        LatencyChange(metric=metric, before_ms=1.0, after_ms=2.0, parts_ms={"compute": 1.0}, causes_ms=causes)
        for metric, causes in (("p99", {"python.gc": 1.0}), ("mean", {}))
    ]
    ideas = tuple(
        TriedIdea(
            name=name,
            comparison=replace(
                undecided,
                why=tuple(changes),
                ratio={"p99": RatioEstimate(value=value, lo=value, hi=value)},
            ),
        )
        for name, value in (("a", 1.2), ("b", 1.1))
    )
    found = Trial(
        workload="w",
        device="cpu",
        base=TriedIdea(name="base"),
        summary=None,
        ideas=ideas,
        rounds=1,
        from_s=0.0,
        to_s=1.0,
        requests=1,
        whole=True,
    )
    assert found.leading is ideas[1]
    first = trial_answer(replace(found, disturbed="a hog")).lines[0]
    assert (first.label, first.words) == ("disturbed", "a hog")
    lines = [line.words for line in trial_answer(found).labeled() if line.label == "why"]
    assert lines == [change.sentence for change in changes]
    sure = next(line for line in trial_answer(replace(found, rounds=2)).lines if line.label == "95 % interval")
    assert sure.words.endswith("from 1 round"), "one of the two was left out for the leading idea"


def test_a_named_cause_of_a_recording_has_a_next_step(ordinary: Session) -> None:
    found = replace(ordinary[1], source=Source(kind="requests", path="access.log"), lost=(), service=None)
    for cause, action in (
        ("traffic.overload", "Add capacity, or refuse"),
        ("dependency.client", "Look at slow clients"),
        ("dependency.db", "Give calls of db a deadline"),
    ):
        first = replace(found.causes[0], cause=cause, named=True)
        named = replace(found, verdict=cause, causes=(first,))
        assert words(diagnosis_answer(named), "next step").startswith(action)
        assert action in " ".join(printed(render_diagnosis(named, folder=None, verbose=True)).split())
        assert not words(diagnosis_answer(replace(named, verdict="steady")), "next step")
