"""Spans: each request's time is divided among them exactly, and the service that stands out is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.findings import diagnose_accounts
from latfix.profilers.recordings.requests.spans.dependencies import account_for_spans
from latfix.profilers.recordings.requests.spans.span_table import SpanRows, SpanTable, own_times
from latfix.results.diagnosis import Diagnosis, Source
from tests.profilers.recordings.devices.test_device_reader import REAL, real

SPANS = REAL / "spans"
MS = 1_000_000


def add(
    rows: SpanRows, trace: int, name: str, parent: str, service: str, begin: float, end: float, *, calls: bool = False
) -> None:
    rows.add(
        trace=f"t{trace}",
        span=name,
        parent=parent,
        service=service,
        operation=f"{service}.call",
        start_ns=round(begin * MS),
        end_ns=round(end * MS),
        calls=calls,
    )


def test_time_belongs_to_the_child_on_the_critical_path() -> None:
    rows = SpanRows()
    add(rows, 0, "root", "", "gateway", 0, 100)
    add(rows, 0, "short", "root", "a", 10, 40)  # parallel to a longer one, so not on the path
    add(rows, 0, "long", "root", "b", 10, 70)
    add(rows, 0, "late", "root", "c", 65, 120)  # begins before the other has ended, and ends after its caller
    own = own_times(rows.table())
    assert own.own_ns.tolist() == [10 * MS, 0, 55 * MS, 35 * MS]


def shop(
    *, n: int = 600, seed: int, fault: str = "", ahead: float = 0.0, steady: bool = True, clients: bool = False
) -> SpanTable:
    """A gateway that calls five services, each through a client span.

    :param ahead: milliseconds by which the clock of ``catalog`` is ahead, in each call if ``steady``, else in half.
    :param clients: the gateway's spans are known to wait for the answer.
    """
    rng = np.random.default_rng(seed)
    rows = SpanRows()
    for request in range(n):
        now = begin = request * 100.0
        calls = []
        hit = request > n // 2
        for service in ("ads", "cart", "catalog", "payment", "shipping"):
            path, own = rng.lognormal(0.7, 0.3, 2)
            if fault == f"network.{service}" and hit:
                path += 80
            if fault == f"service.{service}" and hit:
                own += 80
            if fault == f"rare {service}" and rng.random() < 0.04:
                own += 120
            calls.append((service, now, path, own))
            now += path + own
        add(rows, request, "root", "", "gateway", 1_000 + begin, 1_000 + now + 1)
        for service, first, path, own in calls:
            end = 1_000 + first + path + own
            add(rows, request, f"to {service}", "root", "gateway", 1_000 + first, end, calls=clients)
            start = 1_000 + first + path / 2 + (ahead if service == "catalog" and (steady or request % 2) else 0)
            add(rows, request, service, f"to {service}", service, start, start + own)
    return rows.table()


def diagnosed(spans: SpanTable) -> Diagnosis:
    accounts = account_for_spans(spans)
    result = diagnose_accounts(
        accounts,
        ReadOptions(),
        source=Source(kind="spans", path="x"),
        statuses={},
        offered_ns=accounts.arrival_ns,
        workload="x",
    )
    assert result.ledger.conservation_error_ns() == 0
    return result


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("network.cart", "network.cart"),
        ("service.catalog", "service.catalog"),
        ("rare payment", "service.payment"),
    ],
)
def test_the_service_that_stands_out_has_the_verdict(fault: str, verdict: str, seed: int) -> None:
    result = diagnosed(shop(seed=seed, fault=fault))
    assert result.verdict == verdict
    assert result.causes[0].tail_share > 0.8


def test_a_request_whose_outermost_span_failed_did_not_end_ok(tmp_path: Path) -> None:
    spans = [
        {"traceId": f"{k}", "id": "1", "timestamp": 1_763_800_000_000_000 + 50_000 * k,
         "duration": 1_000 if k % 5 == 0 else 10_000 + k, "localEndpoint": {"serviceName": "api"},
         "tags": {"error": "refused"} if k % 5 == 0 else {}}
        for k in range(300)
    ]  # fmt: skip
    spans.append({**spans[1], "id": "2", "parentId": "1", "tags": {"error": "tried again"}})
    path = tmp_path / "zipkin.json"
    path.write_text(json.dumps(spans))
    result = diagnose_recording(path, ReadOptions())
    assert result.requests == {"ok": 240, "error": 60, "timeout": None, "shed": None}
    assert result.verdict == "losing" and result.latency_ms_ok is not None
    assert result.latency_ms_ok["p50"] == pytest.approx(10.15, abs=0.01)
    document = result.to_json()
    assert document["latency_ms"]["p99"] is None and document["latency_ms"]["p50"] > 10
    assert result.ledger.conservation_error_ns() == 0
    path.write_text(json.dumps([{**span, "tags": {}} for span in spans]))
    assert diagnose_recording(path, ReadOptions()).requests["error"] is None  # nothing says which failed


def test_a_quiet_shop_has_no_named_cause() -> None:
    assert not any(cause.named for cause in diagnosed(shop(seed=1)).causes)


def test_the_calls_that_some_requests_make_more_often_are_in_the_evidence() -> None:
    rows = SpanRows()
    for request in range(400):
        calls = 3 if request % 40 == 7 else 1  # tried again
        add(rows, request, "root", "", "api", 100 * request, 100 * request + 4 * calls + 1)
        for k in range(calls):
            add(rows, request, f"c{k}", "root", "db", 100 * request + 4 * k, 100 * request + 4 * k + 4)
    evidence = next(cause.evidence for cause in diagnosed(rows.table()).causes if cause.cause == "input.size")
    assert "most of it is service.db: 2.00 calls in the 5 % of requests that need most, 1.05 in the mean" in evidence


@pytest.mark.parametrize("own_spans", [True, False])
@pytest.mark.parametrize(("names", "named"), [("db{}", True), ("10.0.0.{}", False), ("{}", False)])
def test_the_slow_shard_of_four_is_named(own_spans: bool, names: str, named: bool) -> None:
    rng = np.random.default_rng(3)
    words = ("orders", "search", "stock", "mail") if names == "{}" else ("1", "2", "3", "4")
    rows = SpanRows()
    for request in range(800):
        shard = int(rng.integers(4))
        name, takes = names.format(words[shard]), 4 * rng.lognormal(0, 0.2) * (9 if shard == 2 else 1)
        begin = 1_000 + 100 * request
        add(rows, request, "root", "", "api", begin, begin + takes + 3)
        rows.add(
            trace=f"t{request}",
            span="call",
            parent="root",
            service=name if own_spans else "api",
            operation="GET",
            start_ns=round((begin + 1) * MS),
            end_ns=round((begin + 1 + takes) * MS),
            calls=not own_spans,
            attributes={} if own_spans else {"server.address": name},
        )
    slow = next(each for each in diagnosed(rows.table()).causes if each.cause == f"service.{names.format(words[2])}")
    assert (
        slow.named is named and ("4.0" in slow.evidence and "by others for the same calls" in slow.evidence) is named
    )


def test_a_slow_shard_called_beside_the_others_is_named() -> None:
    rng = np.random.default_rng(3)
    rows = SpanRows()
    for request in range(400):
        begin, takes = 1_000 + 100 * request, 4 * rng.lognormal(0, 0.2, 6)
        takes[2] *= 9  # so that no other is ever on a critical path
        add(rows, request, "root", "", "api", begin, begin + float(takes.max()) + 3)
        for k in range(6):
            add(rows, request, f"s{k}", "root", f"db{k}", begin + 1, begin + 1 + float(takes[k]))
    rows_of = rows.table()
    rows_of = replace(rows_of, operation=np.where(rows_of.operation > 0, 1, 0))  # the same operation on all
    assert diagnosed(rows_of).verdict == "service.db2"


def rare(rows: SpanRows, request: int, *, client: bool = False) -> None:
    """Add a request that calls a store; one in 25 for far longer, fewer than the percentile has beyond it."""
    begin = 1_000 + 200 * request
    takes = 5 + request % 7 / 10 + (80 if request % 25 == 3 else 0)
    add(rows, request, "root", "", "api", begin, begin + takes + 4)
    add(rows, request, "call", "root", "api" if client else "db", begin + 3, begin + 3 + takes, calls=client)


def test_a_percentile_below_most_slow_requests_does_not_make_them_steady() -> None:
    rows = SpanRows()
    for request in range(600):
        rare(rows, request)
    result = diagnosed(rows.table())
    assert result.percentile == 95 and result.latency_ms["p95"] < 1.15 * result.latency_ms["p50"]
    assert result.verdict == "service.db" and "80.0 ms" not in result.sentence.partition(":")[0]


def test_the_wait_in_a_call_without_its_callee_is_not_the_callers_own() -> None:
    rows = SpanRows()
    for request in range(600):
        rare(rows, request, client=True)
    assert diagnosed(rows.table()).verdict == "service.a callee of api"


def test_the_span_in_which_a_service_answers_is_no_call_of_the_only_other_service() -> None:
    """As Datadog records a request and its query: the service of the latter is the database."""
    rows = SpanRows()
    for request in range(600):
        begin, takes = 1_000 + 200 * request, 20 + request % 7 / 10 + (80 if 300 <= request < 400 else 0)
        add(rows, request, "web.request", "", "api", begin, begin + takes)
        add(rows, request, "db.query", "web.request", "db", begin + 3, begin + 5)
    assert diagnosed(rows.table()).verdict == "service.api"


def test_operations_of_different_lengths_do_not_hide_a_rare_slowdown() -> None:
    rng = np.random.default_rng(4)
    rows = SpanRows()
    for request in range(600):
        begin, at = 1_000 + 400 * request, 1.0
        for name, takes in (("get", 0.2), ("scan", 5.0), ("sum", 5.0), ("put", 0.2), ("list", 30.0)):
            end = at + takes * rng.lognormal(0, 0.1) * (20 if name == "scan" and request % 25 == 3 else 1)
            rows.add(
                trace=f"t{request}",
                span=name,
                parent="root",
                service="db",
                operation=name,
                start_ns=round((begin + at) * MS),
                end_ns=round((begin + end) * MS),
            )
            at = end
        add(rows, request, "root", "", "api", begin, begin + at + 1)
    assert diagnosed(rows.table()).verdict == "service.db"


def test_a_call_that_outlives_its_request_was_not_waited_for() -> None:
    rows = SpanRows()
    for request in range(300):
        begin = 1_000 + 100 * request
        add(rows, request, "root", "", "api", begin, begin + 10)
        add(rows, request, "publish", "root", "api", begin + 1, begin + 60, calls=True)
        add(rows, request, "audit", "publish", "audit", begin + 2, begin + 59)
        add(rows, request, "db", "root", "db", begin + 3, begin + 9)
    table = rows.table()
    own = own_times(table).own_ns
    assert own[:4].tolist() == [4 * MS, 0, 0, 6 * MS] and own.sum() == 3_000 * MS


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ordinary_scatter_of_the_largest_service_is_not_named(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = SpanRows()
    for request in range(800):
        api, db = 5 * rng.lognormal(0, 0.2), 15 * rng.lognormal(0, 0.2)
        begin = request * 100.0
        add(rows, request, "root", "", "gateway", begin, begin + 2 + api + db)
        add(rows, request, "api", "root", "api", begin + 1, begin + 2 + api + db)
        add(rows, request, "db", "api", "db", begin + 1 + api, begin + 1 + api + db)
    assert not any(cause.named for cause in diagnosed(rows.table()).causes)


def test_a_call_beside_a_longer_one_is_compared_with_all_such_calls() -> None:
    """It is on the critical path only if it is slow."""
    rng = np.random.default_rng(3)
    rows = SpanRows()
    for request in range(800):
        db, cache = 10 * rng.lognormal(0, 0.1), 2 * rng.lognormal(0, 0.1) + (80 if rng.random() < 0.08 else 0)
        begin = request * 200.0
        end = begin + 2 + max(db, cache)
        add(rows, request, "root", "", "api", begin, end)
        add(rows, request, "db", "root", "db", begin + 1, begin + 1 + db)
        add(rows, request, "cache", "root", "cache", begin + 1, begin + 1 + cache)
    assert diagnosed(rows.table()).verdict == "service.cache"


def assert_same_causes(true: Diagnosis, skewed: Diagnosis) -> None:
    assert skewed.verdict == true.verdict
    tails = {cause.cause: cause.tail_ms for cause in skewed.causes}
    assert tails == {cause.cause: pytest.approx(cause.tail_ms, abs=0.01) for cause in true.causes}


@pytest.mark.parametrize("ahead", [-30.0, 7.0, 250.0])
@pytest.mark.parametrize("fault", ["network.catalog", "service.catalog", ""])
def test_a_clock_that_is_wrong_does_not_change_the_verdict(fault: str, ahead: float) -> None:
    true, skewed = (diagnosed(shop(seed=1, fault=fault, ahead=clock)) for clock in (0.0, ahead))
    assert_same_causes(true, skewed)
    word = "ahead of" if ahead > 0 else "behind"
    assert not true.notes or "Clocks differ" not in true.notes[0]
    assert f"catalog {abs(ahead):.0f}" in skewed.notes[0] and f"{word} gateway" in skewed.notes[0]


def test_a_clock_that_is_wrong_now_and_then_is_noted() -> None:
    result = diagnosed(shop(seed=1, ahead=40.0, steady=False))
    assert "50.0 % of catalog's spans lie partly outside of gateway's calls" in result.notes[0]


@pytest.mark.parametrize("fault", ["network.catalog", "service.catalog", ""])
def test_spans_are_moved_into_calls_that_wait_for_them(fault: str) -> None:
    true, skewed = (
        diagnosed(shop(seed=1, fault=fault, ahead=clock, steady=False, clients=True)) for clock in (0.0, 40.0)
    )
    assert_same_causes(true, skewed)
    assert "catalog by changing amounts from gateway" in skewed.notes[0]


@pytest.mark.skipif(not SPANS.is_dir(), reason=f"no recordings of spans in {SPANS}")
def test_recorded_faults_of_a_real_shop() -> None:
    truth = json.loads((SPANS / "truth.json").read_text())
    right, named_in_quiet = 0, []
    for name, fault in truth.items():
        result = real(f"spans/{next(SPANS.glob(f'{name}*.csv.gz')).name}")
        if fault is None:
            named_in_quiet += [cause.cause for cause in result.causes if cause.named]
        else:
            right += result.verdict.partition(".")[2] == fault["service"]
    assert right >= 6
    assert named_in_quiet == []
