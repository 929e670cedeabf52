"""Requests that did not end ok: their effect on the verdict, and what they had waited for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.cause_catalogue import CATALOGUE
from latfix.gates.evaluate import evaluate
from latfix.gates.subject import GateSubject
from latfix.gates.syntax import parse_gate
from latfix.lower_bound import AtLeast
from latfix.profilers.attribution.verdict import Loss, _spent_on
from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.diagnose import diagnose
from latfix.results.diagnosis import Diagnosis, Losses
from latfix.run_record.chunked_record import RecordFile
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import EVENT_FIELDS
from latfix.stages import Status
from tests.profilers.evidence.outside.test_outside_view import MS, arrivals, recorded
from tests.profilers.simulated_runs import simulate
from tests.run_record.test_chunked_record import write_run


def _cut_off(record: RunRecord, share: float, status: Status = Status.TIMEOUT) -> RunRecord:
    """The record with its slowest requests lost in the queue, after the longest latency of the others, or answered
    later than that."""
    rows = {name: column.copy() for name, column in record.requests.items()}
    lost = np.argsort(rows["latency_ns"])[-round(share * len(rows["index"])) :]
    limit = int(np.sort(rows["latency_ns"])[-len(lost) - 1])
    rows["status"][lost] = status
    queued = lost[(rows["dispatch_ns"] + rows["prepare_ns"] + rows["queue_ns"])[lost] > limit]
    if status != Status.TIMEOUT:
        queued = lost
    for name in ("batch", "h2d", "compute", "d2h", "finish"):
        rows[f"{name}_ns"][queued] = 0
    rows["latency_ns"][queued] = limit
    rows["queue_ns"][queued] = (limit - rows["dispatch_ns"] - rows["prepare_ns"])[queued]
    rows["batch_id"][queued] = -1
    return replace(record, requests=rows)


def _quiet(**changes: Any) -> RunRecord:
    return simulate(n=600, arrivals_ms=np.arange(600) * 40.0, noise=0.05, **changes)


def test_a_run_that_cuts_off_its_slowest_is_losing_not_steady() -> None:
    found = diagnose(_cut_off(_quiet(), 0.127))
    assert found.verdict == "losing" and "76 of 600 requests (12.7 %) did not end ok: 76 timed out" in found.sentence
    p99 = found.latency_ms["p99"]
    assert isinstance(p99, AtLeast) and p99.bound >= found.latency_ms_ok["max"]
    document = found.to_json()
    assert document["latency_ms"]["p99"] is None and document["latency_ms"]["p99_at_least"] == p99.bound
    assert document["latency_ms"]["p50"] > 0 and document["latency_ms_ok"]["p99"] > 0
    read = Diagnosis.from_json(document)
    assert evaluate(parse_gate("p99<15s"), GateSubject.from_diagnosis(read)).passed is False
    assert read.to_json() == document


def test_few_losses_move_the_percentile_and_prevent_steady() -> None:
    record = _quiet()
    found, whole = diagnose(_cut_off(record, 0.005, Status.ERROR)), diagnose(record)
    assert whole.verdict == "steady" and "lost" not in whole.to_json()
    assert found.verdict == "inconclusive" and "3 of 600 requests (0.500 %)" in found.sentence
    assert found.latency_ms["p99"] > found.latency_ms_ok["p99"]


def test_a_named_cause_stays_named_while_the_percentile_is_known() -> None:
    faults = dict.fromkeys(range(10, 600, 40), ("gc", 60.0))
    record = _quiet(compute_faults=faults)
    found = diagnose(replace(record, requests={**record.requests, "status": np.where(np.arange(600) == 5, 1, 0)}))
    assert found.verdict == "python.gc" and found.requests["error"] == 1


def test_waits_of_lost_requests() -> None:
    """Requests behind a collection waited for it; in a healthy run they waited for ordinary work."""
    arrivals = np.sort(np.concatenate([np.arange(500) * 40.0, np.arange(40) * 500.0 + 3.0]))
    faults = {int(k): ("gc", 300.0) for k in np.searchsorted(arrivals, np.arange(0, 40, 4) * 500.0)}
    record = simulate(n=540, arrivals_ms=arrivals, compute_faults=faults)
    (lost,) = diagnose(_cut_off(record, 0.1)).lost
    assert lost.status == "timeout" and lost.requests == 54 and set(lost.in_stage) == {"queue", "finish"}
    assert max(lost.waited_for_ms, key=lambda name: lost.waited_for_ms[name]) == "python.gc"
    assert sum(lost.waited_for_ms.values()) == pytest.approx(lost.stages_ms["queue"], rel=0.02)
    (busy,) = diagnose(_cut_off(simulate(n=600, rate=140.0), 0.1)).lost
    assert max(busy.waited_for_ms, key=lambda name: busy.waited_for_ms[name]) == "work"


@pytest.mark.parametrize(("state", "verdict"), [("interrupted", "inconclusive"), ("failed", "losing")])
def test_requests_in_flight_are_losses_of_a_service_that_hung_but_not_of_a_stopped_run(
    state: str, verdict: str
) -> None:
    record = _cut_off(_quiet(meta={"state": state}), 0.05, Status.UNFINISHED)
    found = diagnose(replace(record, partial=True))
    assert found.verdict == verdict and found.requests["unfinished"] == 30
    assert found.to_json()["latency_ms"]["p99"] is None


@pytest.mark.parametrize("batching", ["fixed", "continuous"])
def test_a_worker_that_hangs_serves_at_none_of_its_places(batching: str) -> None:
    record = _cut_off(_quiet(meta={"state": "failed"}), 0.05, Status.UNFINISHED)
    if batching == "continuous":
        settings = replace(record.meta.settings, batching="continuous", max_batch_size=4)
        record = replace(record, meta=record.meta.updated(settings=settings))
        record.batches["worker"][:] = np.arange(len(record.batches["worker"])) % 4
    hang = (0, 10**15, "hang", 0, -1, 0, {"message": "worker 0 has been in it"})
    events = {name: np.array([value], object) for name, value in zip(EVENT_FIELDS, hang, strict=True)}
    numbers = {name: column.astype(np.int64) for name, column in events.items() if name not in ("kind", "detail")}
    (lost,) = diagnose(replace(record, partial=True, events={**events, **numbers})).lost
    assert lost.waited_for_ms["hang"] == pytest.approx(lost.stages_ms["queue"], rel=0.02)


def test_shed_on_arrival() -> None:
    record = _cut_off(_quiet(), 0.02, Status.SHED)
    rows, shed = record.requests, record.requests["status"] == Status.SHED
    for name in ("prepare_ns", "prepare_wait_ns", "queue_ns", "latency_ns", "dispatch_ns"):
        rows[name][shed] = 0
    found = diagnose(record)
    assert found.verdict == "losing" and found.lost[0].in_stage == {"admission": 12}


def test_a_request_of_which_nothing_was_sent_was_lost_before_its_connection_was_open() -> None:
    """A service that went away refuses connections; another closes one while the request is being sent."""
    at = arrivals(40.0, n=400)
    record = recorded(at, at + 10 * MS)
    rows, refused, closed = record.requests, at > at[300], at < at[10]
    for lost, sent in ((refused, 0), (closed, 50_000)):
        rows["status"][lost], rows["http_status"][lost], rows["send_ns"][lost] = Status.ERROR, 0, sent
        rows["compute_ns"][lost], rows["latency_ns"][lost] = 0, 100_000
    found = diagnose(record)
    assert found.lost[0].in_stage == {"connect": np.count_nonzero(refused), "send": 10}
    assert not found.lost[0].outage_s, "two times"
    rows["status"][closed] = Status.OK
    found = diagnose(record)
    assert found.lost[0].outage_s == pytest.approx((at[301] / 1e9, at[-1] / 1e9), abs=0.001)
    assert f"nearly all that arrived from {at[301] / 1e9:.3g} to {at[-1] / 1e9:.3g} s" in found.sentence
    rows["status"][refused] = np.where(np.arange(np.count_nonzero(refused)) % 4, Status.OK, Status.ERROR)
    assert not diagnose(record).lost[0].outage_s, "one of four"


def test_waits_of_lost_requests_in_a_large_run_come_from_its_sample() -> None:
    """The sample of a large run represents the requests outside of it."""
    record = _cut_off(simulate(n=3_000, rate=60.0), 0.1)
    (whole,) = diagnose(record).lost
    (pieces,) = diagnose(record, scale=Scale(limit=0, chunk=500, stretches=4, stretch=400)).lost
    assert pieces.requests == whole.requests and pieces.in_stage == whole.in_stage
    assert next(iter(pieces.waited_for_ms)) == next(iter(whole.waited_for_ms)) == "work"
    share, expected = (one.waited_for_ms["work"] / sum(one.waited_for_ms.values()) for one in (pieces, whole))
    assert share == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(("step", "away"), [(1, True), (10, False)], ids=["all", "a-tenth"])
def test_an_outage_outside_of_the_sample_of_a_large_run(step: int, away: bool) -> None:
    record = simulate(n=3_000, rate=40.0, status=dict.fromkeys(range(1_400, 1_500, step), 1))
    (lost,) = diagnose(record, scale=Scale(limit=0, chunk=1_000, stretches=3, stretch=200)).lost
    arrived = record.requests["arrival_ns"][[1_400, 1_499]] / 1e9
    assert lost.outage_s == (pytest.approx(tuple(arrived)) if away else ())


def test_messages_of_a_large_run_are_counted_outside_of_its_sample_too(tmp_path: Path) -> None:
    source = RecordFile(write_run(tmp_path / "run"))
    found = diagnose(source, scale=Scale(limit=0, chunk=200, stretches=2, stretch=50))
    assert [lost.errors for lost in found.lost] == [{"bad 96": 10}]


#: Half of them were lost at once, so the mean of what they waited for exceeds the median wait.
LOST = Losses(
    status="timeout",
    requests=10,
    share=0.1,
    waited_ms={"p50": 1.0, "max": 40.0},
    in_stage={"queue": 10},
    stages_ms={"queue": 20.0},
    waited_for_ms={"work": 18.0, "hang": 2.0},
)


def test_waits_of_lost_requests_are_reported_as_a_share() -> None:
    assert Loss(every=(LOST,)).words == (
        "10 of 100 requests (10.0 %) did not end ok: 10 timed out after 1.00 ms, in queue; "
        "90 % of their wait was for ordinary work ahead of them"
    )
    spread = replace(LOST, waited_for_ms={"work": 9.0, "hang": 11.0 / 2, "unrecorded": 11.0 / 2})
    assert "of their wait" not in Loss(every=(spread,)).words
    in_batch = replace(LOST, stages_ms={"queue": 20.0, "batch": 30.0})
    assert "of their wait" not in Loss(every=(in_batch,)).words


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("host.contention", "was behind a request whose core was taken"),
        ("cold.compile", "was behind a request that triggered a compilation"),
        ("batching.window", "was behind a worker held by the batch timer"),
        ("hang", "was for a batch that never ended"),
    ],
)
def test_what_lost_requests_waited_for_is_a_plain_clause(cause: str, words: str) -> None:
    losses = replace(LOST, waited_for_ms={cause: 7.0, "work": 3.0})
    assert Loss(every=(losses,)).words.endswith(f"70 % of their wait {words}")


def test_every_cause_reads_as_what_a_request_waits_behind() -> None:
    assert not [cause for cause in CATALOGUE if "behind one " in _spent_on(cause)]


def test_messages_that_differ_in_numbers_only_are_one() -> None:
    record = _cut_off(_quiet(), 0.1, Status.ERROR)
    lost = record.requests["index"][record.requests["status"] == Status.ERROR].tolist()
    messages = {index: f"shape ({32 + k}, 1)" if k else "out of memory" for k, index in enumerate(lost)}
    (found,) = diagnose(replace(record, errors=messages)).lost
    assert sorted(found.errors.values()) == [1, len(lost) - 1] and found.errors["out of memory"] == 1
