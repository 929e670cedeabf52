"""A service seen from outside, on simulated time."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import pytest

from latfix.arrays import Ints
from latfix.gates.latency_change import latency_change
from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.diagnose import diagnose
from latfix.profilers.evidence.outside.outside_view import Serving, in_line, piles_up
from latfix.profilers.evidence.outside.service_process import ServiceProcess
from latfix.profilers.evidence.outside.service_queue import with_queue
from latfix.profilers.evidence.outside.standstills import find_standstills
from latfix.queueing.inference.queue_inference import infer_queue
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import EVENT_FIELDS, REQUEST_DTYPE, Columns
from latfix.traffic.schedule import Traffic
from tests.profilers.samples import sample_columns
from tests.records import build_record, zeros

MS = 1_000_000
#: Between two answers.
GAP = 50_000
N = 2_000
#: Where requests are rare: readings of so long a run take longest.
FEW = 700
HTTP = {"kind": "http", "path": "http://h/p"}


def arrivals(rate: float, seed: int = 1, n: int = N) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1e9 / rate, n)).astype(np.int64)


def served(at: np.ndarray, service: np.ndarray, servers: int) -> np.ndarray:
    """When each request ends, first come first served; many servers for a service without a queue."""
    free, end = np.full(servers, -(2**62)), np.zeros(len(at), np.int64)
    for k in range(len(at)):
        lane = int(np.argmin(free))
        end[k] = max(int(at[k]), int(free[lane])) + int(service[k])
        free[lane] = end[k]
    return end


def services(n: int = N, seed: int = 2) -> np.ndarray:
    return (np.random.default_rng(seed).normal(10, 0.5, n) * MS).astype(np.int64)


def samples(times: np.ndarray, **series: np.ndarray) -> Columns:
    """Series of the service, all with these times."""
    return sample_columns({f"server.{name}": (times, np.asarray(values)) for name, values in series.items()})


def recorded(at: np.ndarray, end: np.ndarray, *, features: Any = None, **parts: Any) -> RunRecord:
    n = len(at)
    rows = zeros(REQUEST_DTYPE, n)
    rows["index"], rows["arrival_ns"] = np.arange(n), at - 100_000
    rows["dispatch_ns"] += 20_000
    rows["prepare_ns"] += 80_000
    rows["send_ns"] += 80_000
    rows["compute_ns"], rows["latency_ns"] = end - at, end - at + 100_000
    rows["http_status"] += 200
    rows["batch_id"] -= 1
    traffic = Traffic.plain(rows["arrival_ns"], features=features or {})
    return build_record(rows, traffic=traffic, source=HTTP, **parts)


def present(times: np.ndarray, at: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Number of intervals that contain each time."""
    begun, ended = (np.searchsorted(np.sort(moments), times, side="right") for moments in (at, end))
    return (begun - ended).astype(np.float64)


def spent(times: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Total length of intervals up to each time."""

    def since(moments: np.ndarray) -> np.ndarray:
        count = np.searchsorted(np.sort(moments), times, side="right")
        return np.asarray(count * times - np.concatenate([[0], np.cumsum(np.sort(moments))])[count])

    return np.asarray(since(start) - since(np.maximum(start, stop)))


def busy_while_serving(at: np.ndarray, end: np.ndarray, idle: np.ndarray) -> Columns:
    """Counters of a process that runs during each request, except for its last ``idle`` nanoseconds."""
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    return samples(times, cpu_ns=spent(times, at, end - idle), runq_ns=np.zeros(len(times)))


def held_up(at: np.ndarray, took: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every 1.1 s no request is answered for 150 ms, then all go on together: their ends, and when that begins."""
    end, stops = at + took, np.arange(1_000 * MS, int(at[-1]), 1_100 * MS)
    for moment in stops:
        still = (end > moment) & (at < moment + 150 * MS)
        end[still] = moment + 150 * MS + np.maximum(end[still] - np.maximum(at[still], moment), 0) // 20
    return end, stops


def largest(found: Diagnosis) -> str:
    assert found.ledger.conservation_error_ns() == 0
    return max(found.causes, key=lambda cause: cause.tail_ms).cause


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_servers_are_found_where_one_queue_feeds_them(servers: int) -> None:
    at = arrivals(70.0 * servers)
    queue = infer_queue(at, served(at, services(), servers) - at, GAP)
    assert queue is not None and queue.servers == servers


@pytest.mark.parametrize("outside_ms", [2, 12, 30])
@pytest.mark.parametrize("servers", [1, 3])
def test_time_before_and_after_a_server_hides_no_queue(servers: int, outside_ms: int) -> None:
    """An event loop reads the next request while its workers, which sleep, serve the ones before."""
    burst = np.repeat(np.arange(1, 20) * 2_000 * MS, 12 * servers)
    at = np.sort(np.concatenate([arrivals(30.0 * servers, n=N // 2 * servers), burst]))
    service, half = services(len(at)), outside_ms * MS // 2
    end = served(at + half, service, servers) + half
    waited = end - at - service - 2 * half
    queue = infer_queue(at, end - at, GAP)
    assert queue is not None and queue.servers == servers
    assert np.abs(queue.wait_ns - waited).max() < 3 * MS
    found = diagnose(recorded(at, end, samples=busy_while_serving(at, end, end - at)))
    assert found.verdict == "traffic.burst" == largest(found)
    by_cause = {cause.cause: cause.tail_ms for cause in found.causes}
    slow = np.argsort(end - at)[-len(at) // 100 :]
    assert by_cause["traffic.burst"] == pytest.approx(waited[slow].mean() / MS, rel=0.1)
    assert abs(by_cause["unexplained"]) < 0.05 * by_cause["traffic.burst"]
    assert not any(cause.named for cause in found.causes if cause.cause == "external.dependency")


def test_last_bytes_that_wait_for_an_acknowledgment_hide_no_queue() -> None:
    """A message in two pieces: the second waits for 40 ms, in which its server takes the next request."""
    at = np.sort(np.concatenate([arrivals(30.0), np.repeat(np.arange(1, 20) * 2_000 * MS, 12)]))
    first = served(at, services(len(at)), 1)
    record = recorded(at, first + (40 + np.random.default_rng(5).uniform(0, 4, len(at))).astype(np.int64) * MS)
    record.requests["finish_ns"] = record.requests["compute_ns"] - (first - at)
    record.requests["compute_ns"] = first - at
    found = diagnose(record)
    assert found.service is not None and found.service.servers == 1
    assert found.verdict == "traffic.burst" == largest(found)
    assert found.stages_ms["queue"]["p99"] == pytest.approx(
        np.quantile(first - at - services(len(at)), 0.99) / MS, rel=0.05
    )


def test_no_queue_is_found_where_there_is_none() -> None:
    at = arrivals(150.0)
    assert infer_queue(at, services(), GAP) is None  # all side by side
    together = (at // (50 * MS) + 1) * 50 * MS + 10 * MS  # in batches, on a timer
    assert infer_queue(at, together - at, GAP) is None


def test_an_interval_divides_into_run_wait_and_idle() -> None:
    times = np.arange(0, 101 * MS, MS)
    cpu, runq = np.minimum(times, 40 * MS), np.clip(times - 40 * MS, 0, 20 * MS)
    start, end = np.array([0, 60 * MS]), np.array([100 * MS] * 2)
    process = ServiceProcess(samples(times, cpu_ns=cpu, runq_ns=runq), start[:0], end[:0])
    assert process.delayed(start, end).tolist() == [20 * MS, 0]
    assert process.idle(start, end).tolist() == [40 * MS, 40 * MS]
    unwatched = ServiceProcess(build_record().samples, start, end)
    assert not unwatched.delayed(start, end).any() and not unwatched.idle(start, end).any()


def test_a_long_run_is_attributed_in_pieces() -> None:
    """From outside no request has a batch."""
    at = np.sort(np.concatenate([arrivals(40.0), np.repeat(np.arange(1, 20) * 2_000 * MS, 20)]))
    record = recorded(at, served(at, services(len(at)), 1))
    whole, pieces = diagnose(record), diagnose(record, scale=Scale(limit=0, chunk=700, stretches=3, stretch=600))
    assert pieces.pieces is not None and pieces.pieces > 1
    assert dict(pieces.latency_ms) == pytest.approx(dict(whole.latency_ms), rel=1e-6)
    assert [window.requests for window in pieces.windows] == [window.requests for window in whole.windows]
    assert pieces.verdict == whole.verdict == "traffic.burst"


def test_a_burst_in_front_of_one_server_is_traffic() -> None:
    at = np.sort(np.concatenate([arrivals(40.0), np.repeat(np.arange(1, 20) * 2_000 * MS, 20)]))
    found = diagnose(recorded(at, served(at, services(len(at)), 1)))
    assert found.verdict == "traffic.burst"
    assert found.service is not None
    assert any("did not keep growing (1 server)" in cause.evidence for cause in found.causes)
    assert found.service.servers == 1
    assert found.stages_ms["queue"]["p99"] > 0


@pytest.mark.parametrize(
    ("added_ms", "late", "idle", "noted"),
    [
        (40, 0.6, True, True),
        (40, 0.6, None, True),
        (40, 0.6, False, False),
        (40, 0.1, None, False),
        (32, 1.0, None, False),
    ],
)
def test_delayed_acknowledgments_are_noted(added_ms: int, late: float, idle: bool | None, noted: bool) -> None:
    """Work of about 42 ms also takes less than 40, or keeps the process busy."""
    rng = np.random.default_rng(6)
    at = arrivals(10.0, n=FEW)
    delayed_by = np.where(rng.random(FEW) < late, added_ms * MS, 0)
    work = (rng.normal(10, 2, FEW) if added_ms == 32 else rng.uniform(1, 3, FEW)) * MS
    end = at + work.astype(np.int64) + delayed_by
    series = busy_while_serving(at, end, delayed_by if idle else 0 * delayed_by)
    more = {} if idle is None else {"samples": series}
    notes = [note for note in diagnose(recorded(at, end, **more), bootstrap=20).notes if "NODELAY" in note]
    assert len(notes) == noted
    assert all("to the first byte of" in note and "pause of fixed length" in note for note in notes)
    assert not any("uvicorn" in note for note in notes)


@pytest.mark.parametrize(
    ("server", "program", "advice"),
    [
        ("", "python3.11", "disable_nagle_algorithm"),
        ("BaseHTTP/0.6 Python/3.11.7", "python3.11", "disable_nagle_algorithm"),
        ("uvicorn", "python3.11", "uvloop: with --workers"),
        ("", "java", "nodelay=true"),
        ("", "node", "TCP_NODELAY for the service's connections"),
    ],
)
@pytest.mark.parametrize("share", [0.6, 1.0])
def test_delayed_acknowledgments_within_answers_are_a_cause(
    server: str, program: str, advice: str, share: float
) -> None:
    """The process is busy until the first byte, and idle until the last; most answers wait, or all."""
    at, late = arrivals(4.0), np.where(np.random.default_rng(6).random(N) < share, 41 * MS, 0)
    work = 6 * services()
    end = at + work + late
    record = recorded(at, end, samples=busy_while_serving(at, end, late), http={"program": program, "server": server})
    record.requests["compute_ns"] -= late
    record.requests["finish_ns"] += late
    found = diagnose(record, bootstrap=20)
    (cause,) = [cause for cause in found.causes if cause.cause == "network.delayed_ack"]
    # A quiet answer does not wait, so all of the wait counts, in the tail and what-if, and once.
    assert cause.named and cause.own_ms == pytest.approx(41, abs=0.5)
    assert found.reference_ms == pytest.approx(np.median(work) / MS, rel=0.15)
    assert cause.whatif_ms["p50"] == pytest.approx(np.median(work) / MS, rel=0.15)
    assert "first byte, hardly any slightly earlier" in cause.evidence
    assert not any("NODELAY" in note for note in found.notes)
    (words,) = [each.change for each in found.advice if each.cause == "network.delayed_ack"]
    assert advice in words and ("uvloop" in words) == (server == "uvicorn")
    assert found.ledger.conservation_error_ns() == 0
    # AND in chunks
    chunked = diagnose(record, bootstrap=20, scale=Scale(limit=100, chunk=200))
    (same,) = [each for each in chunked.causes if each.cause == "network.delayed_ack"]
    assert same.tail_ms == pytest.approx(cause.tail_ms, rel=0.01) and same.named


def test_delayed_acknowledgments_outside_of_the_tail_are_noted() -> None:
    """Half of the answers wait, and one in 30 takes three seconds."""
    rng = np.random.default_rng(6)
    at, late, slow = arrivals(2.0), np.where(rng.random(N) < 0.5, 41 * MS, 0), np.where(rng.random(N) < 0.03, 3000, 0)
    end = at + services() + late + slow * MS
    record = recorded(at, end, samples=busy_while_serving(at, end, late + slow * MS))
    record.requests["compute_ns"] -= late
    record.requests["finish_ns"] += late
    found = diagnose(record, bootstrap=20)
    assert not any(cause.named for cause in found.causes if cause.cause == "network.delayed_ack")
    (note,) = [note for note in found.notes if "NODELAY" in note]
    assert "of the answers ended 40 to 45 ms after their first byte" in note and note.endswith("kernel delays.")


@pytest.mark.parametrize("pause_ms", [0, 80])
@pytest.mark.parametrize("slept", [True, False])
def test_waits_in_which_threads_sleep_are_said_to_be(slept: bool, pause_ms: int) -> None:
    """One request in twelve sleeps for 60 ms, or waits for a dependency; a background thread always sleeps.

    A pause that all requests make is no reason for these.
    """
    at, late = arrivals(10.0, n=FEW), np.where(np.random.default_rng(6).random(FEW) < 0.08, 60 * MS, 0)
    pause = pause_ms * MS
    end = at + services(FEW) + pause + late
    series = busy_while_serving(at, end, pause + late)
    times = np.unique(series["t_ns"])
    asleep = present(times, end - pause - late * slept, end) + 1
    series = samples(times, **{
        name: series["value"][series["series"] == f"server.{name}"] for name in ("cpu_ns", "runq_ns")
    }, sleep=asleep)  # fmt: skip
    found = diagnose(recorded(at, end, samples=series), bootstrap=20)
    (cause,) = [cause for cause in found.causes if cause.cause == "external.dependency"]
    assert cause.named and ("mostly slept in threads" in cause.evidence) == slept


@pytest.mark.parametrize(("call", "words"), [("loop_in.fsync", "thread mostly in the system call fsync"),
                                             ("sleep", "mostly slept in threads")])  # fmt: skip
def test_the_call_in_which_the_only_server_waits_is_named(call: str, words: str) -> None:
    """One request in 40 keeps the server, which serves in order of arrival, waiting for 90 ms; others queue."""
    at, late = arrivals(140.0), np.where(np.random.default_rng(6).random(N) < 0.025, 90 * MS, 0)
    service = services() // 5
    end = served(at, service + late, 1)
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    ran = spent(times, end - late - service, end - late)
    waits = {call: present(times, end - late, end)}
    found = diagnose(recorded(at, end, samples=samples(times, cpu_ns=ran, runq_ns=0 * ran, **waits)), bootstrap=20)
    assert found.service is not None and found.service.servers == 1
    (cause,) = [cause for cause in found.causes if cause.cause == "external.dependency"]
    assert cause.named and words in cause.evidence


def test_a_stopped_process_is_no_dependency() -> None:
    """One request in twelve is there while the process is stopped for 60 ms."""
    at, late = arrivals(10.0, n=FEW), np.where(np.random.default_rng(6).random(FEW) < 0.08, 60 * MS, 0)
    end = at + services(FEW) + late
    series = busy_while_serving(at, end, late)
    times = np.unique(series["t_ns"])
    read = {name: series["value"][series["series"] == f"server.{name}"] for name in ("cpu_ns", "runq_ns")}
    stopped_ns = np.sum([np.clip(times - begin, 0, 60 * MS) for begin in (end - late)[late > 0]], axis=0)
    found = diagnose(recorded(at, end, samples=samples(times, **read, stopped_ns=stopped_ns)), bootstrap=20)
    by_cause = {cause.cause: cause for cause in found.causes}
    assert "external.dependency" not in by_cause or by_cause["external.dependency"].tail_ms < 5
    assert f"the process was stopped for {late.sum() // MS:,} ms in all" in by_cause["unexplained"].evidence


def test_delayed_acknowledgments_of_some_answers_are_no_dependency() -> None:
    """One answer in twelve waits after its first byte, such as a large one; streams and other pauses do not count."""
    at, late = arrivals(10.0, n=FEW), np.where(np.random.default_rng(6).random(FEW) < 0.08, 41 * MS, 0)
    end = at + services(FEW) + late

    def found(paused: Ints, chunks: int) -> Diagnosis:
        record = recorded(at, end, samples=busy_while_serving(at, end, late))
        record.requests["compute_ns"] -= paused
        record.requests["finish_ns"] += paused
        record.requests["chunks"] += chunks
        return diagnose(record, bootstrap=20)

    seen = found(late, 0)
    assert seen.verdict == "network.delayed_ack"
    others = {cause.cause: cause.tail_ms for cause in seen.causes if cause.cause != seen.verdict}
    assert abs(others["unexplained"]) < 5 and others.get("external.dependency", 0.0) < 5
    streamed, before = found(late, 2), found(0 * late, 0)
    assert not any(cause.cause == seen.verdict for cause in streamed.causes + before.causes)
    assert not any("NODELAY" in note for note in streamed.notes + before.notes)
    assert {cause.cause: cause.tail_ms for cause in before.causes}["external.dependency"] > 20


def test_nor_do_other_requests_hide_one() -> None:
    """Half of the answers wait, while the process computes for others in a third of the time."""
    at = arrivals(40.0)
    late = np.where(np.random.default_rng(3).random(N) < 0.55, 42 * MS, 0)
    first = served(at, services(), 2)
    record = recorded(at, first + late, samples=busy_while_serving(at, first, 0 * late))
    record.requests["compute_ns"] -= late
    record.requests["finish_ns"] += late
    (cause,) = [cause for cause in diagnose(record, bootstrap=20).causes if cause.cause == "network.delayed_ack"]
    assert cause.named and cause.requests == np.count_nonzero(late)


def test_idle_time_is_unknown_while_the_process_is_not_watched() -> None:
    """The watch ended early: then the counters stand still, too."""
    at = arrivals(20.0)
    slow = (np.random.default_rng(5).random(N) < 0.04) & (np.arange(N) > N // 2)
    idle = np.where(slow, 150 * MS, 0)
    end = at + services() + idle
    series = busy_while_serving(at, end, idle)
    assert largest(diagnose(recorded(at, end, samples=series), bootstrap=20)) == "external.dependency"
    early = {name: column[series["t_ns"] < at[N // 2]] for name, column in series.items()}
    found = diagnose(recorded(at, end, samples=early), bootstrap=20)
    assert all(cause.tail_ms < 1 for cause in found.causes if cause.cause != "unexplained")


def test_a_slow_dependency_is_named_where_the_process_is_watched() -> None:
    at, slow = arrivals(20.0), np.random.default_rng(5).random(N) < 0.03
    idle = np.where(slow, 150 * MS, 0)
    end = at + services() + idle
    watched = diagnose(recorded(at, end, samples=busy_while_serving(at, end, idle)))
    assert watched.verdict == "external.dependency"
    unwatched = diagnose(recorded(at, end))
    assert unwatched.verdict == "inconclusive"
    assert largest(unwatched) == "unexplained"
    assert any("--pid" in note for note in unwatched.notes)
    assert np.isnan(unwatched.stages_ms["queue"]["p99"])
    assert unwatched.to_json()["stages_ms"]["queue"]["mean"] is None


def test_the_last_wait_of_a_thread_that_ended_is_not_taken_for_a_dependency() -> None:
    """A thread for each request: the counters that it leaves unread, about 8 ms of a wait for a core, are unknown."""
    at, slow = arrivals(20.0), np.random.default_rng(5).random(N) < 0.03
    end = at + services() + np.where(slow, 8 * MS, 0)
    series = busy_while_serving(at, end, np.where(slow, 8 * MS, 0))
    times = np.unique(series["t_ns"])
    threads = sample_columns({"server.threads": (times, 1 + present(times, at, end))})
    both = {name: np.concatenate([series[name], threads[name]]) for name in series}
    found = diagnose(recorded(at, end, samples=both))
    assert all(cause.tail_ms < 0.5 for cause in found.causes if cause.cause == "external.dependency")
    long = diagnose(recorded(at, end + np.where(slow, 100 * MS, 0), samples=both))
    assert long.verdict == "external.dependency"


def test_a_wait_for_a_core_that_is_counted_after_the_request_is_no_idle_time() -> None:
    times = np.array([0, 5, 10, 15, 20, 25]) * MS
    watched = samples(times, cpu_ns=np.zeros(6), runq_ns=np.array([0, 0, 0, 0, 11, 11]) * MS)
    start, end = np.array([6 * MS]), np.array([17 * MS])
    assert ServiceProcess(watched, start, end).idle(start, end).tolist() == [round(6.6 * MS)]
    for series in (watched, samples(times, cpu_ns=np.zeros(6))):
        assert ServiceProcess(series, start, end).least_idle(start, end).tolist() == [0]


def test_waits_of_others_for_a_core_are_not_those_of_a_request_that_sleeps() -> None:
    """Half of the time that requests sleep for 200 ms, others wait for a core."""
    at, slow = arrivals(30.0), np.random.default_rng(5).random(N) < 0.02
    end = at + np.where(slow, 200 * MS, 15 * MS)
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    cpu, runq = (spent(times, at + begin * MS, at + stop * MS) for begin, stop in ((10, 15), (0, 10)))
    found = diagnose(recorded(at, end, samples=samples(times, cpu_ns=cpu, runq_ns=runq)))
    by_id = {cause.cause: cause.tail_ms for cause in found.causes}
    assert found.verdict == "external.dependency"
    assert by_id["external.dependency"] > 160
    assert by_id["host.contention"] < 25


def test_blame_passes_through_a_visible_queue() -> None:
    at, slow = arrivals(50.0), np.random.default_rng(5).random(N) < 0.01
    idle = np.where(slow, 120 * MS, 0)
    end = served(at, services() + idle, 1)
    turn = np.maximum(at, np.concatenate([[0], end[:-1]]))
    found = diagnose(recorded(at, end, samples=busy_while_serving(turn, end, idle)))
    assert found.verdict == "external.dependency"
    cause = next(one for one in found.causes if one.cause == "external.dependency")
    assert cause.propagated_ms > cause.own_ms / 4


def test_a_neighbor_on_the_core_is_contention() -> None:
    at = arrivals(60.0)
    hit = (at // (500 * MS)) % 4 == 0
    end = at + services() + np.where(hit, 60 * MS, 0)
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    runq, cpu = (spent(times, at[chosen], end[chosen]) for chosen in (hit, ~hit))
    found = diagnose(recorded(at, end, samples=samples(times, cpu_ns=cpu, runq_ns=runq)))
    assert found.verdict == "host.contention"


def test_larger_inputs_are_known_from_features() -> None:
    at, tokens = arrivals(80.0), np.random.default_rng(3).integers(1, 100, N)
    end = at + tokens * MS // 2 + services()
    found = diagnose(recorded(at, end, features={"tokens": tokens}))
    assert largest(found) == "input.size"


def test_a_standstill_of_all_is_not_a_dependency() -> None:
    at, ordinary = arrivals(200.0), services()
    end, _ = held_up(at, ordinary)
    idle = np.maximum(end - at - ordinary, 0)
    found = diagnose(recorded(at, end, samples=busy_while_serving(at, end, idle)))
    assert largest(found) == "unexplained"
    assert "answered no request" in next(one.evidence for one in found.causes if one.cause == "unexplained")


@pytest.mark.parametrize(("servers", "load"), [(1, 0.7), (2, 0.85), (3, 0.8)])
def test_ordinary_waits_of_a_pool_for_others_are_its_service(servers: int, load: float) -> None:
    """Each request runs for 5 ms and waits elsewhere for 5 to 55 ms: in its queue the mean counts, not the median."""
    service = ((5 + np.random.default_rng(7).uniform(5, 55, N)) * MS).astype(np.int64)
    at = arrivals(1e9 * load * servers / float(service.mean()))
    end = served(at, service, servers)
    start, times = end - service, np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    counters = samples(times, cpu_ns=spent(times, start, start + 5 * MS), runq_ns=np.zeros(len(times)))
    found = diagnose(recorded(at, end, samples=counters))
    shares = {cause.cause: cause.tail_share for cause in found.causes}
    assert largest(found) == "traffic.burst" and shares["external.dependency"] < 0.35
    assert shares["unexplained"] > -0.1


def test_waits_for_a_core_are_divided_among_the_requests_of_a_pool() -> None:
    """Four servers whose requests wait 10 ms for a core in every other second; together they waited no longer."""
    base = ((5 + np.random.default_rng(1).uniform(5, 55, N)) * MS).astype(np.int64)
    at = arrivals(4 * 0.5e9 / float(base.mean() + 5 * MS))
    contended = np.where(at % (2000 * MS) < 1000 * MS, 10 * MS, 0)
    end = served(at, base + contended, 4)
    start, times = end - base - contended, np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    counters = samples(
        times,
        cpu_ns=spent(times, start + contended, start + contended + 5 * MS),
        runq_ns=spent(times, start, start + contended),
    )
    found = diagnose(recorded(at, end, samples=counters))
    own = found.ledger.own_ns[found.ledger.causes.index("host.contention")]
    assert float(own.sum()) == pytest.approx(float(contended.sum()), rel=0.3)
    assert sum(cause.tail_share for cause in found.causes if cause.cause != "unexplained") < 1.05


def test_a_change_of_latency_names_the_queue_that_is_inferred() -> None:
    """One server that takes 12 ms instead of 10: most of the change of p99 is the wait for it."""
    at = arrivals(70.0)
    arms = [[with_queue(recorded(at, served(at, services() + more, 1)))] for more in (0, 2 * MS)]
    change = latency_change("p99", *arms)
    assert change is not None and set(change.parts_ms) >= {"send", "first byte", "queue behind it"}
    assert change.parts_ms["first byte"] == pytest.approx(2.0, abs=0.5)
    assert change.parts_ms["queue behind it"] > 10


def test_a_pause_of_the_traffic_is_no_standstill() -> None:
    """After it, requests that arrive together are answered together, each in its usual time."""
    at = np.arange(2_000) * 2 * MS + np.arange(2_000) // 200 * 60 * MS
    nothing = {name: np.zeros(0, np.int64) for name in EVENT_FIELDS}
    events, end = {**nothing, "kind": np.zeros(0, dtype=object)}, at + 20 * MS
    assert len(find_standstills(at, end, end, np.arange(len(at)), events).everyone) == 0


def test_drift_is_described_in_the_clients_stages() -> None:
    at = arrivals(20.0)
    found = diagnose(recorded(at, at + services() + np.linspace(0, 30 * MS, N).astype(np.int64)))
    assert found.verdict.startswith("drift.")
    assert found.causes[0].evidence.startswith("first_byte took 1") and "compute" not in found.causes[0].evidence


def test_overload_in_front_of_one_server_is_no_drift() -> None:
    """Nearly all requests wait, and too few do not for an ordinary comparison."""
    at = arrivals(110.0)
    end = served(at, services(), 1)
    assert np.count_nonzero(at[1:] >= end[:-1]) < 20
    assert diagnose(recorded(at, end)).verdict == "traffic.overload"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_time_that_grows_with_the_requests_in_flight_is_no_drift(seed: int) -> None:
    """A queue of a kind that is not found: whoever waits is served in any order."""
    at, end = arrivals(110.0, seed), np.zeros(N, np.int64)
    waiting: list[int] = []
    rng, now, k = np.random.default_rng(seed), 0, 0
    while k < N or waiting:
        if not waiting:
            now = max(now, int(at[k]))
        while k < N and at[k] <= now:
            waiting.append(k)
            k += 1
        now += 10 * MS
        end[waiting.pop(rng.integers(len(waiting)))] = now
    assert infer_queue(at, end - at, GAP) is None
    found = diagnose(recorded(at, end))
    assert not any(cause.cause.startswith("drift.") and cause.tail_ms > 1 for cause in found.causes)


@pytest.mark.parametrize(("capacity", "slower", "grows"), [(0.8, 0.0, True), (2.0, 0.0, False), (2.0, 2e9, False)])
def test_a_backlog_that_grows_is_told_from_a_dependency_that_became_slow(
    capacity: float, slower: float, grows: bool
) -> None:
    """100 requests a second for 20 s; one server, or a dependency that takes 2 s more from the middle on."""
    at = (np.arange(2_000) * 10 * MS).astype(np.int64)
    end = served(at, np.full(2_000, round(10 * MS / capacity)), 1) + np.where(at > 1_000 * 10 * MS, int(slower), 0)
    assert piles_up(at, end) == grows


def test_a_backlog_without_a_known_queue_is_no_wait_for_something_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service sleeps for each request: one after the other, and more arrive than it serves; or side by side."""
    monkeypatch.setattr("latfix.profilers.evidence.units.serving_of", lambda _: Serving())
    for rate, servers, named in ((130.0, 1, False), (50.0, N, True)):
        at = arrivals(rate)
        slow = np.arange(N) % 40 == 0
        end = served(at, services() + np.where(slow, 30 * MS, 0), servers)
        found = diagnose(recorded(at, end, samples=busy_while_serving(at, end, end - at)))
        assert ("external.dependency" in {cause.cause for cause in found.causes if cause.named}) == named


@pytest.mark.parametrize("servers", [1, 2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_the_earliest_free_server_takes_the_next_in_line(servers: int, seed: int) -> None:
    """Also of requests that end before a server is free for them, and in any order of rows."""
    rng = np.random.default_rng(seed)
    at = rng.permutation(np.arange(80)) * 1_000 + rng.integers(0, 900, 80)
    end = at + rng.integers(1, 4_000 * servers, 80)
    turn, lane = in_line(at, end, servers)
    free = [-1] * servers
    for k in np.argsort(at).tolist():
        place = lane[k]
        assert free[place] == min(free) and turn[k] == max(at[k], free[place])
        free[place] = max(end[k], turn[k])
    assert set(lane.tolist()) == set(range(servers))
    nobody, none = in_line(at[:0], end[:0], servers)
    assert len(nobody) == len(none) == 0


def test_what_a_request_computes_beside_short_others_is_no_idle_time() -> None:
    """One in forty reads its model and then prepares it: half of its time is a wait."""
    at, loads = arrivals(25.0), np.arange(N) % 40 == 5
    begun = at + np.where(loads, 120, 3) * MS
    end = begun + np.where(loads, 120, 2) * MS
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    found = diagnose(
        recorded(at, end, samples=samples(times, cpu_ns=spent(times, begun, end), runq_ns=np.zeros(len(times))))
    )
    waited = next(cause.tail_ms for cause in found.causes if cause.cause == "external.dependency")
    assert waited == pytest.approx(117, rel=0.1)


def test_the_evidence_of_sizes_is_that_of_the_stage_which_they_determine() -> None:
    """Streams as long as their tokens, whose first byte comes at once."""
    at, tokens = arrivals(20.0), np.random.default_rng(3).integers(10, 40, N)
    record = recorded(at, at + 2 * MS + tokens * 9 * MS, features={"tokens": tokens})
    record.requests["compute_ns"], record.requests["finish_ns"] = np.full(N, 2 * MS), tokens * 9 * MS
    record.requests["chunks"] = tokens
    found = diagnose(record)
    assert found.verdict == "input.size"
    evidence = next(cause.evidence for cause in found.causes if cause.cause == "input.size")
    assert "351 ms (p99) of the time from the first byte to the last (model: R² 1.00)" in evidence


def in_steps(at: np.ndarray, tokens: np.ndarray, step_ms: float, each_ms: float) -> tuple[np.ndarray, np.ndarray]:
    """First and last bytes of streams that share steps, which take longer the more streams are in them."""
    first, end = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
    left: dict[int, int] = {}
    now, came = 0, 0
    while came < len(at) or left:
        now = now if left else max(now, int(at[came]))
        while came < len(at) and at[came] <= now:
            left[came] = int(tokens[came])
            came += 1
        now += int((step_ms + each_ms * len(left)) * MS)
        for k in list(left):
            first[k], left[k] = first[k] or now, left[k] - 1
            if not left[k]:
                end[k] = now
                del left[k]
    return first, end


@pytest.mark.parametrize(("each_ms", "cause"), [(3.0, "unexplained"), (0.0, "external.dependency")])
def test_streams_that_wait_for_each_other_wait_for_nothing_outside(each_ms: float, cause: str) -> None:
    """While a device computes their steps, the process is idle, as it is while one of them waits for a database."""
    rng = np.random.default_rng(4)
    at, tokens = arrivals(6.0, n=600), np.full(600, 25)
    first, end = in_steps(at, tokens, 10.0, each_ms)
    database = np.where(rng.random(600) < 0.03, 0 if each_ms else 400, 0) * MS
    first, end = first + database, end + database
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    idle = np.zeros(len(times))
    record = recorded(at, end, samples=samples(times, cpu_ns=np.arange(len(times)) * 1_000.0, runq_ns=idle))
    record.requests["compute_ns"], record.requests["finish_ns"] = first - at, end - first
    record.requests["chunks"] = tokens
    assert largest(diagnose(record)) == cause


@pytest.mark.parametrize(
    ("slow", "cause"),
    [(1, "unexplained"), (2, "unexplained"), ("for a while", "external.dependency"), ("more", "external.dependency")],
)
def test_a_wait_for_a_place_in_a_pool_is_no_wait_for_something_outside(slow: int | str, cause: str) -> None:
    """A job leaves so many of four connections for half a second; or the dependency takes longer for all alike."""
    at = arrivals(120.0)
    job = at % (3_000 * MS) < 500 * MS
    work = np.random.default_rng(2).normal(20, 2, N) * MS
    end = at + (work + np.where(job, 150 * MS, 0)).astype(np.int64)
    if slow == "more":
        end = at + (work * (1 + 10 * at / at[-1])).astype(np.int64)
    elif isinstance(slow, int):
        free = np.zeros(4, np.int64)
        for k, came in enumerate(at.tolist()):
            places = slow if max(came, int(free[0])) % (3_000 * MS) < 500 * MS else 4
            place = int(np.argmin(free[:places]))
            end[k] = free[place] = max(came, int(free[place])) + int(work[k])
    times = np.arange(0, int(end.max()) + 5 * MS, 5 * MS)
    found = diagnose(recorded(at, end, samples=samples(times, cpu_ns=times / 50, runq_ns=0 * times)), bootstrap=20)
    assert largest(found) == cause
    evidence = next(one.evidence for one in found.causes if one.cause == "unexplained")
    assert ("in their order of arrival" in evidence) == isinstance(slow, int)


def in_one_loop(at: np.ndarray, away_ms: int) -> np.ndarray:
    """When requests end that compute in one event loop for 1, 9 and 1 ms, and are away between these turns."""
    end, free, turns = np.zeros(len(at), np.int64), 0, [1, 9, 1]
    ready = [(int(moment), k, 0) for k, moment in enumerate(at)]
    heapify(ready)
    while ready:
        moment, k, turn = heappop(ready)
        free = max(free, moment) + turns[turn] * MS
        if turn == 2:
            end[k] = free
        else:
            heappush(ready, (free + away_ms * MS, k, turn + 1))
    return end


@pytest.mark.parametrize("away_ms", [4, 14])
def test_an_event_loop_that_serves_each_request_in_turns_is_not_several_servers(away_ms: int) -> None:
    at = arrivals(25.0, n=600)
    end = in_one_loop(at, away_ms)
    assert infer_queue(at, end - at, GAP) is not None  # which is not entirely one
    found = diagnose(recorded(at, end))
    assert found.service is not None and found.service.servers is None
    assert not any(cause.named for cause in found.causes if cause.cause != "unexplained")


def test_streams_that_begin_before_a_server_is_free_wait_for_none() -> None:
    """Their ends are those of a queue."""
    at = arrivals(20.0)
    end = served(at, services() * 8, 2)
    record = recorded(at, end)
    record.requests["compute_ns"], record.requests["finish_ns"] = np.full(N, 5 * MS), end - at - 5 * MS
    record.requests["chunks"] = np.full(N, 20)
    found = diagnose(record)
    assert infer_queue(at, end - at, GAP) is not None
    assert found.service is not None and found.service.servers is None
