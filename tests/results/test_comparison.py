"""Comparisons of records: pairing, survivors, partial runs, and notes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from latfix.gates.evaluate import evaluate
from latfix.gates.syntax import parse_gate
from latfix.results.comparison import Comparison, compare_records, compare_rounds
from latfix.run_record.dispatch_lag import is_on_time, lag_p99_ms
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import REQUEST_DTYPE, Columns
from latfix.stages import Status
from latfix.statistics.decision import SCREENING, Rule
from latfix.statistics.latency_summary import summarize_ms
from latfix.traffic.schedule import Traffic
from tests.records import build_record, zeros

N = 600
MEDIAN: dict[str, Any] = {"objective": {"percentile": 50}}


def _latencies(seed: int, scale: float = 1.0, n: int = N) -> npt.NDArray[np.int64]:
    """Heavy-tailed milliseconds; the work of a request is the same for every seed."""
    work = np.random.default_rng(0).lognormal(0, 0.7, n)
    noise = np.random.default_rng(seed).lognormal(0, 0.1, n)
    return np.asarray(work * noise * scale * 1e7, dtype=np.int64)


def _record(
    latency: npt.NDArray[np.int64],
    *,
    status: npt.NDArray[np.int64] | None = None,
    keep: slice = slice(None),
    partial: bool = False,
    dispatch_ms: float = 0.0,
    **meta: Any,
) -> RunRecord:
    n = len(latency)
    rows: Columns = zeros(REQUEST_DTYPE, n)
    rows["index"] = np.arange(n)
    rows["arrival_ns"] = np.arange(n) * 20_000_000
    rows["latency_ns"] = latency
    rows["dispatch_ns"] = np.full(n, int(dispatch_ms * 1e6))
    rows["status"] = np.zeros(n, dtype=np.int64) if status is None else status
    warm = {name: np.concatenate([[0], column[keep]]) for name, column in rows.items()}
    warm["index"][0], warm["warmup"][0], warm["latency_ns"][0] = -1, 1, 10**12
    traffic = Traffic.plain(np.arange(n) * 20_000_000)
    base = {"traffic_sha256": "same", "workload": "ranker", "scheduled": n, "objective": {"percentile": 99}}
    return build_record(warm, traffic=traffic, partial=partial, **{**base, **meta})


def test_a_faster_run_is_better() -> None:
    base, new = _record(_latencies(1)), _record(_latencies(2, 0.5), accuracy=0.9)
    comparison = compare_records(base, new, seed=0)
    assert comparison.verdict == "better" and comparison.paired and comparison.judged == "p99"
    assert comparison.before.latency_ms == summarize_ms(_latencies(1))
    assert comparison.after.requests == {"ok": N, "error": 0, "timeout": 0, "shed": 0}
    assert comparison.after.throughput_rps == pytest.approx(50, rel=0.02)
    assert (comparison.before.accuracy, comparison.after.accuracy) == (None, 0.9)
    assert tuple(comparison.ratio) == ("mean", "p50", "p90", "p95", "p99")
    for estimate in comparison.ratio.values():
        assert estimate.lo < 0.5 < estimate.hi < 1
        assert estimate.bounds[0] <= estimate.lo and estimate.hi <= estimate.bounds[1] < 1
    assert compare_records(new, base, seed=0).verdict == "worse"
    assert comparison.notes == ()


def test_a_run_does_not_differ_from_itself() -> None:
    comparison = compare_records(_record(_latencies(1)), _record(_latencies(1)))
    assert comparison.verdict == "undecided"  # one run does not show the effect of a restart
    assert comparison.ratio["p99"].value == 1.0


def test_rounds_that_agree_show_no_difference() -> None:
    base, new = ([_record(_latencies(seed + k), **MEDIAN) for k in range(8)] for seed in (1, 101))
    comparison = compare_rounds(base, new)
    assert comparison.verdict == "no_difference" and comparison.rounds == 8
    assert comparison.more_rounds is None


def test_one_round_with_a_small_difference_reports_its_resolution() -> None:
    base, new = _record(_latencies(1), **MEDIAN), _record(_latencies(2, 0.88), **MEDIAN)
    comparison = compare_records(base, new)
    live = compare_rounds([base], [new], rule=SCREENING)
    assert comparison.ratio["p50"].hi < 1 and comparison.verdict == "undecided"
    assert any("one round cannot distinguish a difference below about 48 %" in note for note in comparison.notes)
    more = comparison.more_rounds
    assert more is not None and comparison.to_json()["more_rounds"] == more
    assert any(f"about {more} more rounds" in note and f"({more * N:,} more" in note for note in comparison.notes)
    assert live.verdict == "better"


def test_fewer_losses_are_better_but_a_mean_of_fewer_is_not() -> None:
    slow = _latencies(1)
    lost = np.where(slow > np.quantile(slow, 0.9), int(Status.TIMEOUT), int(Status.OK))
    mended = compare_records(_record(slow, status=lost), _record(_latencies(2)))
    assert mended.verdict == "better" and mended.ratio["p99"].lost
    few = np.where(slow > np.quantile(slow, 0.995), int(Status.SHED), int(Status.OK))
    mean = compare_rounds([_record(slow)], [_record(_latencies(2, 0.4), status=few)], judged="mean")
    assert mean.ratio["mean"].decision is not None and mean.ratio["mean"].decision[1] < 1
    assert mean.verdict == "undecided"


def test_partial_traffic_decides_nothing() -> None:
    part = _record(_latencies(2, 0.4), keep=slice(0, 400), partial=True)
    for arms in ((_record(_latencies(1)), part), (part, _record(_latencies(1, 0.1)))):
        found = compare_records(*arms)
        assert found.ratio["mean"].hi < 1 and found.verdict == "undecided"
        assert any("did not reach its end" in note for note in found.notes)
    assert compare_records(_record(_latencies(1, 0.1)), part).verdict == "worse"


def test_the_same_shift_is_decided_where_rounds_show_it() -> None:
    base, new = (
        [_record(_latencies(seed + k, scale), **MEDIAN) for k in range(6)] for seed, scale in ((1, 1.0), (101, 0.88))
    )
    decided = compare_rounds(base, new)
    stricter = compare_rounds(base, new, rule=Rule(level=1e-9))
    assert decided.verdict == "better"
    assert stricter.verdict == "undecided"
    assert stricter.ratio["p50"].lo == decided.ratio["p50"].lo  # the displayed interval stays at 95 %


def test_pairing_detects_what_whole_runs_hide() -> None:
    base, new = _latencies(1), _latencies(2, 0.93)
    paired = compare_records(_record(base), _record(new))
    unpaired = compare_records(_record(base), _record(new, traffic_sha256="other"))
    assert paired.ratio["mean"].hi < 1
    assert not unpaired.paired and unpaired.ratio["mean"].lo < 1 < unpaired.ratio["mean"].hi
    assert any("the traffic differs" in note for note in unpaired.notes)
    unknown = [_record(latency, traffic_sha256=None) for latency in (base, new)]
    assert not compare_records(*unknown).paired, "unknown traffic is not assumed to be the same"


def test_survivors_cannot_be_better() -> None:
    slow = _latencies(1)
    shed = np.where(slow > np.quantile(slow, 0.9), int(Status.SHED), int(Status.OK))
    comparison = compare_records(_record(slow), _record(slow, status=shed))
    before, after = comparison.before.latency_ms["p99"], comparison.after.latency_ms_ok["p99"]
    assert after < before  # the survivors are faster
    assert comparison.verdict == "worse" and comparison.to_json()["ratio"]["p99"]["value"] is None
    document = comparison.to_json()["after"]
    assert document["latency_ms"]["p99"] is None and document["latency_ms"]["p99_at_least"] > 0
    assert comparison.after.requests["shed"] == 60
    assert (comparison.only_before_ok, comparison.only_after_ok) == (60, 0)
    assert any("losses unload the service" in note for note in comparison.notes)
    assert any("60 requests ended ok in the base only, 0 in the new" in note for note in comparison.notes)
    lost = np.where(np.arange(N) < 3, int(Status.ERROR), int(Status.OK))
    arms = _record(slow), _record(_latencies(2, 0.3), status=lost)
    assert compare_records(*arms).verdict == "undecided"  # one block more like that of the three, and p99 is lost
    few = compare_rounds([arms[0]], [arms[1]], judged="p95")
    assert few.verdict == "better" and any("3 requests ended ok in the base only" in note for note in few.notes)


def test_a_run_cut_short_is_compared_over_what_both_recorded() -> None:
    slow_end = _latencies(1)
    slow_end[N // 2 :] *= 10
    comparison = compare_records(_record(slow_end), _record(slow_end, keep=slice(0, N // 2), partial=True))
    assert comparison.ratio["p99"].value == 1.0
    assert comparison.before.requests["ok"] == comparison.after.requests["ok"] == N // 2
    assert any("new is partial: 300 scheduled requests without a record" in note for note in comparison.notes)
    assert any("300 requests that only one of the runs recorded" in note for note in comparison.notes)


def test_a_late_replay_decides_nothing() -> None:
    comparison = compare_records(_record(_latencies(1)), _record(_latencies(2, 0.5), dispatch_ms=5.0))
    assert comparison.verdict == "undecided"
    assert not comparison.after.trustworthy and comparison.before.trustworthy
    assert any("replay of new was too late" in note for note in comparison.notes)


def test_an_empty_run_decides_nothing() -> None:
    comparison = compare_records(_record(_latencies(1)), _record(_latencies(1), keep=slice(0, 0), partial=True))
    assert comparison.verdict == "undecided"
    json.dumps(comparison.to_json(), allow_nan=False)
    assert compare_records(_record(_latencies(1, n=0)), _record(_latencies(1, n=0))).verdict == "undecided"


def test_differences_are_listed() -> None:
    base = _record(_latencies(1), settings={"workers": 1, "env": {}}, machine={"cores": 2}, device="cpu")
    new = _record(
        _latencies(2),
        settings={"workers": 2, "env": {"OMP_WAIT_POLICY": "PASSIVE"}},
        machine={"cores": 4},
        device="cuda",
        workload="other",
    )
    assert [note for note in compare_records(base, new).notes if not note.startswith("undecided")] == [
        "the device differs: cpu -> cuda",
        "the machine differs: cores 2 -> 4",
        "settings: workers 1 -> 2, env.OMP_WAIT_POLICY unset -> PASSIVE",
    ]


@pytest.mark.parametrize("traffic", ["t", "other"])
def test_another_workload_is_reported_unless_it_replayed_the_same_traffic(traffic: str) -> None:
    base = _record(_latencies(1), traffic_sha256="t")
    notes = compare_records(base, _record(_latencies(2), workload="other", traffic_sha256=traffic)).notes
    assert ("the workload differs: ranker -> other" in notes) == (traffic == "other")


def test_a_single_request_has_no_interval() -> None:
    estimate = compare_records(_record(_latencies(1)[:1]), _record(_latencies(1, 0.55)[:1])).ratio["p99"]
    assert estimate.value == pytest.approx(0.55) and estimate.to_json()["ci95"] is None


def test_an_undecided_gate_determines_how_many_more_rounds_are_needed() -> None:
    base, new = ([_record(_latencies(seed + k), **MEDIAN) for k in range(2)] for seed in (1, 101))
    comparison = compare_rounds(base, new)
    assert comparison.rounds_to_decide == comparison.more_rounds
    gates = [
        evaluate(parse_gate(f"p50<=baseline*{limit}"), *comparison.gate_subjects()) for limit in (1.04, 1.1, 9.0)
    ]
    gated = comparison.gated(gates)
    assert [gate.passed for gate in gates] == [None, None, True]
    most = max(int(gate.reason.split("about ")[1].split(" more")[0]) for gate in gates[:2])
    assert gated.rounds_to_decide == most
    assert not any(note.startswith("undecided") for note in gated.notes)
    assert comparison.gated(gates[2:]).rounds_to_decide is None


def test_rounds_are_pooled_and_their_spread_counts() -> None:
    base = [_record(_latencies(k)) for k in range(6)]
    steady = compare_rounds(base, [_record(_latencies(k + 10, 0.7)) for k in range(6)], accuracy=(0.9, 0.8))
    factors = (0.5, 1.2, 0.6, 0.9, 0.5, 1.1)
    restless = compare_rounds(base, [_record(_latencies(k + 10, s)) for k, s in enumerate(factors)])
    assert steady.rounds == 6 and steady.before.requests["ok"] == 6 * N
    assert steady.verdict == "better"
    assert (steady.before.accuracy, steady.after.accuracy) == (0.9, 0.8)
    assert restless.ratio["p99"].value < 1
    assert restless.verdict == "undecided"
    with pytest.raises(ValueError, match="no rounds"):
        compare_rounds([], [])
    with pytest.raises(ValueError, match="argument"):
        compare_rounds(base, base[:2])


@pytest.mark.parametrize(("percentile", "judged"), [(95, "p95"), (50.0, "p50"), (99.9, "p99"), (None, "p99")])
def test_the_objective_s_percentile_is_judged(percentile: float | None, judged: str) -> None:
    record = _record(_latencies(1), objective={"percentile": percentile})
    assert compare_records(record, record).judged == judged


def _comparison() -> Comparison:
    return compare_records(_record(_latencies(1), accuracy=0.9), _record(_latencies(2, 0.5), accuracy=0.89))


def test_the_document_has_the_keys_of_the_contract() -> None:
    document = json.loads(json.dumps(_comparison().to_json(), allow_nan=False))
    assert document["schema"] == "latfix.comparison/1"
    for side in ("before", "after"):
        assert set(document[side]) >= {"latency_ms", "throughput_rps", "requests", "accuracy"}
        assert set(document[side]["latency_ms"]) == {"mean", "p50", "p90", "p95", "p99", "p99_9", "max"}
    assert set(document["ratio"]["p99"]) >= {"value", "ci95", "decision", "level"}
    assert document["more_rounds"] is None


@pytest.mark.parametrize(
    ("gate", "passed"),
    [
        ("p99<=baseline*0.8", True),
        ("p95<=baseline*0.3", False),
        ("p99<=baseline*0.5", None),
        ("throughput>=baseline*0.9", True),
        ("accuracy>=baseline-0.02", True),
        ("accuracy>=baseline", False),
        ("error_rate<1%", True),
    ],
)
def test_gates_see_the_new_arm_and_the_ratio(gate: str, passed: bool | None) -> None:
    subject, baseline = _comparison().gate_subjects()
    assert evaluate(parse_gate(gate), subject, baseline).passed is passed


def test_lag_is_late_only_above_a_millisecond_and_a_tenth_of_the_median() -> None:
    slow = _record(_latencies(1, 10.0), dispatch_ms=5.0)  # median about 100 ms
    quick = _record(_latencies(1, 0.1), dispatch_ms=0.9)  # median about 1 ms
    assert is_on_time(slow) and lag_p99_ms(slow) == pytest.approx(5.0)
    assert is_on_time(quick)
    assert not is_on_time(_record(_latencies(1, 0.1), dispatch_ms=1.1))
