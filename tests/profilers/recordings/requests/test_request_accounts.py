"""Planted causes in request logs are named, and each request's entries sum to its latency."""

from __future__ import annotations

import heapq
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.profilers.queue_inference import SERVICES, shared_log
from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.readers import diagnose_table
from latfix.profilers.recordings.requests.request_table import CANCELLED, EngineSteps, Gaps, RequestTable
from latfix.profilers.recordings.requests.shared_stalls import times_words
from latfix.queueing.closed_loop import find_closed_loop, in_flight
from latfix.queueing.inference.queue_inference import infer_queue, served_from, starts
from latfix.queueing.inference.sharing_inference import infer_sharing
from latfix.results.diagnosis import Diagnosis
from latfix.stages import Status
from tests.profilers.recordings.requests.simulated_log import TYPICAL_NS, served, simulated

Floats = npt.NDArray[np.floating[Any] | np.integer[Any]]


def diagnosed(table: RequestTable, percentile: float | None = 99.0) -> Diagnosis:
    result = diagnose_table(table, Path("log"), ReadOptions(percentile=percentile))
    assert result.ledger.conservation_error_ns() == 0
    return result


def log_of(arrival: Floats, end: Floats, **more: Any) -> RequestTable:
    """A log of requests that all ended ok, from when they arrived and ended in nanoseconds."""
    at = np.rint(arrival).astype(np.int64)
    latency = np.rint(end).astype(np.int64) - at
    return RequestTable(arrival_ns=at, latency_ns=latency, status=np.zeros(len(at), np.int8), **more)


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("servers", [1, 4])
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("burst", "traffic.burst"),
        ("big", "input.size"),
        ("drift", "drift.unknown"),
        ("dependency", "dependency.db"),
    ],
)
def test_the_planted_cause_has_the_verdict(kind: str, cause: str, servers: int, seed: int) -> None:
    result = diagnosed(simulated(kind, seed, servers=servers))
    assert result.verdict == cause
    top = result.causes[0]
    assert top.named and top.tail_share > 0.5
    assert top.whatif_ms["p99"] < result.latency_ms["p99"]


@pytest.mark.parametrize(("kind", "cause"), [("dependency", "dependency.db"), ("burst", "traffic.burst")])
def test_a_service_of_microseconds_has_causes_too(kind: str, cause: str) -> None:
    table = simulated(kind, 11)
    parts = {name: column // 10_000 for name, column in table.parts.items()}
    faster = replace(table, arrival_ns=table.arrival_ns // 10_000, latency_ns=table.latency_ns // 10_000, parts=parts)
    result = diagnosed(faster)
    assert result.latency_ms["p50"] < 0.003 and result.verdict == cause


@pytest.mark.parametrize("size", [1e25, 1e300, float("inf")])
def test_a_size_that_none_is_does_not_spoil_the_others(size: float) -> None:
    table = simulated("big", 11)
    wrong = table.features["size"].copy()
    wrong[7] = size
    result = diagnosed(replace(table, features={"size": wrong}))
    assert result.verdict == "input.size" and "R² nan" not in result.causes[0].evidence
    assert abs(result.causes[0].tail_ms) < 1e6


@pytest.mark.parametrize("seed", [11, 12])
def test_a_stall_of_all_servers_is_one_event(seed: int) -> None:
    result = diagnosed(simulated("stall", seed, servers=4))
    assert result.verdict == "stall.shared"
    assert "12 times" in result.causes[0].evidence or "11 times" in result.causes[0].evidence


@pytest.mark.parametrize("regular", [True, False])
def test_stalls_that_come_regularly_have_their_period(regular: bool) -> None:
    rng = np.random.default_rng(3)
    moments = np.arange(8) * 3.0 + rng.uniform(0, 0.05 if regular else 3.0, 8)
    words = times_words((moments * 1e9).astype(np.int64))
    assert words == ("8 times, every 3.00 s," if regular else "8 times")
    assert times_words(np.arange(4)) == "4 times"


def test_a_single_stall_is_shown_though_its_size_is_not_certain() -> None:
    result = diagnosed(simulated("stall", 11, servers=4, moments=1))
    assert result.verdict == "inconclusive" and result.causes[0].rests_on_few
    assert "not certain, because it happened seldom: 97 % of the excess" in result.sentence


def test_a_single_burst_is_shown_with_what_chance_may_bring() -> None:
    rng, n = np.random.default_rng(0), 3000
    arrival, size = np.cumsum(rng.exponential(TYPICAL_NS / 0.3, n)), rng.lognormal(0, 0.1, n)
    arrival[1500:1520] = arrival[1500] + np.sort(rng.uniform(0, 6 * TYPICAL_NS, 20))
    arrival = np.sort(arrival)
    ended = served(arrival, TYPICAL_NS * size, 1, np.zeros(0))
    at, out = (np.rint(times - arrival[0]).astype(np.int64) for times in (arrival, ended))
    result = diagnosed(RequestTable(arrival_ns=at, latency_ns=out - at, status=np.zeros(n, np.int8)))
    assert result.verdict == "inconclusive" and result.causes[0].tail_share > 0.9
    assert "not certain: 9" in result.sentence and "is a burst of arrivals" in result.sentence
    assert "chance alone may bring" in result.sentence and "A longer recording decides" in result.sentence


@pytest.mark.parametrize("servers", [1, 4])
def test_a_quiet_log_names_no_fault(servers: int) -> None:
    result = diagnosed(simulated("quiet", 11, servers=servers))
    assert {cause.cause for cause in result.causes if cause.named} <= {"input.size"}


@pytest.mark.parametrize("known", [True, False])
def test_unread_columns_are_noted_if_much_is_unexplained(known: bool) -> None:
    table = replace(simulated("dependency", 11), unread="Not read: db_ms.")
    result = diagnosed(table if known else replace(table, parts={}))
    assert ("Not read: db_ms." in result.notes) == (not known)


def test_the_queue_is_inferred_with_its_servers() -> None:
    result = diagnosed(simulated("quiet", 11, servers=4, load=0.6))
    burst = next(cause for cause in result.causes if cause.cause == "traffic.burst")
    assert "inferred: 4 served at once" in burst.evidence
    assert result.stages_ms["queue"]["p50"] == 0


def test_no_queue_is_inferred_for_a_shared_processor() -> None:
    rng = np.random.default_rng(5)
    table = simulated("quiet", 5, load=0.6)
    shared = np.rint(TYPICAL_NS * rng.lognormal(0, 0.6, len(table))).astype(np.int64)
    result = diagnosed(replace(table, latency_ns=shared))
    assert "queue" not in result.stages_ms
    assert not any(cause.cause.startswith("traffic.") for cause in result.causes)
    assert any("not separated from service" in note for note in result.notes)


@pytest.mark.parametrize("cores", [1, 4])
def test_requests_that_share_cores_wait_for_each_other(cores: int) -> None:
    at, latency = shared_log("lognormal, 0.5", "0.4 and a burst", cores, seed=41)
    result = diagnosed(log_of(at, at + latency))
    assert result.verdict == "traffic.burst" and result.causes[0].tail_share > 0.6
    assert f"shared {cores}." in result.causes[0].evidence or f"shared {cores - 1}.9" in result.causes[0].evidence
    assert "queue" not in result.stages_ms
    assert not any("not separated from service" in note for note in result.notes)


def test_those_that_share_cores_with_large_requests_wait_for_them() -> None:
    """And large ones wait longer than their work: both are due to the size."""
    at, latency = shared_log("25 % five times as long", "0.8", 2, seed=41)
    need = SERVICES["25 % five times as long"](np.random.default_rng(41))
    result = diagnosed(log_of(at, at + latency, features={"size": np.rint(1e5 * need)}))
    assert result.verdict == "input.size"
    size = result.causes[0]
    assert size.propagated_ms > size.own_ms > 0 and size.tail_share > 0.6
    unexplained = next(cause for cause in result.causes if cause.cause == "unexplained")
    assert unexplained.tail_share < 0.1


def test_a_request_that_found_the_cores_free_waits_for_a_large_one_that_came_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rare(rng: np.random.Generator) -> npt.NDArray[np.float64]:
        large = rng.random(3_000) < 0.02
        return np.where(large, 0.1, 0.005) * rng.lognormal(0, np.where(large, 0.05, 0.3))

    monkeypatch.setitem(SERVICES, "rare", rare)
    at, latency = shared_log("rare", "0.5", 1, seed=41)
    need = rare(np.random.default_rng(41))
    result = diagnosed(log_of(at, at + latency, features={"size": np.where(need > 0.05, 20.0, 1.0)}))
    ledger, causes = result.ledger, result.ledger.causes
    late = (in_flight(at, latency) == 0) & (latency > 1.5e9 * need) & (need < 0.05)
    came = np.searchsorted(at, at + latency)
    late &= np.array([(need[k + 1 : last] > 0.05).any() for k, last in enumerate(came.tolist())])
    assert np.count_nonzero(late) > 5
    propagated = ledger.propagated_ns[:, late].sum(axis=1)
    assert propagated[causes.index("input.size")] > 0.8 * propagated.sum() > 0


def test_a_core_that_a_request_awaited_beside_others_is_not_counted_twice() -> None:
    """What a thread waited for a core is a part of what it waited for the others."""
    at, latency = shared_log("lognormal, 0.5", "0.4 and a burst", 2, seed=41)
    sharing = infer_sharing(at, latency, 1000)
    assert sharing is not None
    result = diagnosed(log_of(at, at + latency, parts={"host.contention": sharing.wait_ns // 2}))
    assert result.verdict == "traffic.burst"
    assert not any(cause.cause == "host.contention" and cause.tail_ms > 0.01 for cause in result.causes)


def test_no_queue_is_inferred_from_arrivals_to_the_second() -> None:
    table = simulated("burst", 11)
    coarse = replace(table, arrival_ns=table.arrival_ns // 10**9 * 10**9, resolution_ns=10**9)
    assert any("known to 1,000 ms only" in note for note in diagnosed(coarse).notes)


@pytest.mark.parametrize("rate", [300, 2000])
def test_milliseconds_show_the_queue_unless_services_are_as_short(rate: int) -> None:
    table = fcfs("exponential", 0.9, 2)
    faster = rate / (0.9 * 2 / (TYPICAL_NS / 1e9))
    at, end = (
        (each / faster).astype(np.int64) // 10**6 * 10**6
        for each in (table.arrival_ns, table.arrival_ns + table.latency_ns)
    )
    result = diagnosed(replace(table, arrival_ns=at, latency_ns=end - at, resolution_ns=10**6))
    if rate == 300:
        assert any("2 served at once" in cause.evidence for cause in result.causes)
    else:
        assert any("known to 1.00 ms only" in note and "log finer times" in note for note in result.notes)


def test_a_measured_queue_is_used_unmodified() -> None:
    table = simulated("quiet", 11)
    queue = np.zeros(len(table), np.int64)
    queue[1000:1060] = 300_000_000
    result = diagnosed(replace(table, latency_ns=np.full(len(table), 20_000_000) + queue, parts={"queue": queue}))
    assert result.stages_ms["queue"]["tail"] == pytest.approx(300, rel=0.2)
    assert result.stages_ms["service"]["p50"] == pytest.approx(20)


@pytest.mark.parametrize("servers", [1, 4])
def test_a_queue_behind_an_empty_measured_one_is_inferred_from_milliseconds(servers: int) -> None:
    table = simulated("burst", 11, servers=servers)
    at, took = (column // 10**6 * 10**6 for column in (table.arrival_ns, table.latency_ns))
    proxied = replace(table, arrival_ns=at, latency_ns=took, resolution_ns=10**6)
    result = diagnosed(replace(proxied, features={}, parts={"queue": np.zeros(len(table), np.int64)}))
    assert result.verdict == "traffic.burst"
    assert f"the recorded queue is empty, one is inferred behind it: {servers} served at once" in (
        result.causes[0].evidence
    )


@pytest.mark.parametrize("servers", [1, 4])
def test_waits_behind_ordinary_scatter_are_the_traffic_s(servers: int) -> None:
    """Skewed service times make queues longer than their median does."""
    rng = np.random.default_rng(3)
    table = simulated("quiet", 3, servers=servers)
    at = np.sort(np.concatenate([table.arrival_ns, table.arrival_ns[2000] + rng.integers(0, 10**8, 150)]))
    service = TYPICAL_NS * rng.lognormal(0, 0.5, len(at))
    free, wait = np.zeros(servers), np.zeros(len(at))
    for row, came in enumerate(at.tolist()):
        server = int(np.argmin(free))
        wait[row] = max(free[server] - came, 0)
        free[server] = came + wait[row] + service[row]
    log = log_of(at, at + wait + service, parts={"queue": wait.astype(np.int64)})
    shares = {cause.cause: cause.tail_share for cause in diagnosed(log).causes}
    assert shares["traffic.burst"] > 0.9 and abs(shares["unexplained"]) < 0.1


def fcfs(kind: str, load: float, servers: int, *, before: float = 0.0, n: int = 3000) -> RequestTable:
    """A first-come, first-served service without any fault.

    :param before: the load of the first half, if it is another.
    """
    rng = np.random.default_rng(3)
    service = {
        "constant": np.full(n, TYPICAL_NS),
        "exponential": rng.exponential(TYPICAL_NS, n),
        "wide": TYPICAL_NS * rng.lognormal(0, 0.8, n),
        "mixed": TYPICAL_NS * np.where(rng.random(n) < 0.15, 8.0, 1.0) * rng.uniform(0.95, 1.05, n),
    }[kind]
    loads = np.where(np.arange(n) < n / 2, before or load, load)
    arrival = np.cumsum(rng.exponential(float(service.mean()) / servers / loads))
    ended = served(arrival, service, servers, np.zeros(0))
    return log_of(arrival - arrival[0], ended - arrival[0])


def in_series(first: tuple[int, float], second: tuple[int, float]) -> RequestTable:
    """As a gateway's pool before a model's workers: servers of each, and their mean service."""
    rng = np.random.default_rng(7)
    rate = 0.8 * min(servers / takes for servers, takes in (first, second)) / TYPICAL_NS
    arrival = moment = np.cumsum(rng.exponential(1 / rate, 3000))
    order = np.arange(3000)
    for servers, takes in (first, second):
        ended = served(moment[order], takes * TYPICAL_NS * rng.lognormal(0, 0.1, 3000), servers, np.zeros(0))
        moment = np.empty(3000)
        moment[order] = ended
        order = np.argsort(moment, kind="stable")
    return log_of(arrival - arrival[0], moment - arrival[0])


@pytest.mark.parametrize(("first", "second"), [((2, 0.5), (4, 1.0)), ((8, 3.0), (2, 1.0))])
def test_two_stages_in_series_are_not_taken_for_one_queue(
    first: tuple[int, float], second: tuple[int, float]
) -> None:
    notes = diagnosed(in_series(first, second)).notes
    assert any("in series" in note or "a second stage" in note for note in notes)


def test_a_stage_without_waits_is_time_outside_of_the_queue_behind_it() -> None:
    found = diagnosed(in_series((4, 0.5), (2, 1.0)))
    burst = next(cause for cause in found.causes if cause.cause == "traffic.burst")
    assert burst.evidence.startswith("inferred: 2 served at once")
    assert found.stages_ms["queue"]["mean"] == pytest.approx(1.0187 * TYPICAL_NS / 1e6, rel=0.03)


@pytest.mark.parametrize("servers", [2, 6])
@pytest.mark.parametrize("kind", ["exponential", "mixed"])
def test_a_queue_is_inferred_whatever_the_distribution_of_services(kind: str, servers: int) -> None:
    table = fcfs(kind, 0.85, servers)
    queue = infer_queue(table.arrival_ns, table.latency_ns, 1)
    assert queue is not None and queue.servers == servers


@pytest.mark.parametrize("servers", [1, 4])
@pytest.mark.parametrize("kind", ["constant", "exponential", "wide"])
def test_overload_is_found_in_an_excerpt_without_a_free_server(kind: str, servers: int) -> None:
    whole = fcfs(kind, 1.2, servers, n=6000)
    late = np.arange(6000) >= 3000
    table = replace(
        whole, arrival_ns=whole.arrival_ns[late], latency_ns=whole.latency_ns[late], status=whole.status[late]
    ).sorted()
    queue = infer_queue(table.arrival_ns, table.latency_ns, 1)
    assert queue is not None and queue.servers == servers and queue.always
    result = diagnosed(table)
    assert result.verdict == "traffic.overload" and result.causes[0].tail_share > 0.8
    assert f"{servers} at once serve" in result.causes[0].evidence
    assert f"{servers + 1} would keep up" in result.causes[0].evidence
    assert result.reference_ms < 2 * TYPICAL_NS / 1e6


def in_turns(users: int, servers: int, think: float = 0.0) -> RequestTable:
    """Requests of users, who send the next request when the last is answered and they have thought.

    :param think: mean time between, in services.
    """
    rng = np.random.default_rng(4)
    ready, free = [(0.0, user) for user in range(users)], [0.0] * servers
    arrival, end, sender = [], [], []
    for service in rng.exponential(TYPICAL_NS, 4000).tolist():
        came, user = heapq.heappop(ready)
        arrival.append(came)
        sender.append(user)
        end.append(max(came, heapq.heappop(free)) + service)
        heapq.heappush(free, end[-1])
        heapq.heappush(ready, (end[-1] + think * float(rng.exponential(TYPICAL_NS)), user))
    return log_of(np.array(arrival), np.array(end), user=np.array(sender))


def test_a_load_test_with_more_users_than_servers_shows_its_queue() -> None:
    table = replace(in_turns(64, 4), user=None)
    queue = infer_queue(table.arrival_ns, table.latency_ns, 1_000)
    assert queue is not None and queue.servers == 4
    assert float(np.median(queue.wait_ns)) > 10 * TYPICAL_NS
    result = diagnosed(table)
    evidence = {cause.cause: cause.evidence for cause in result.causes}
    assert "clients wait for an answer" in evidence["traffic.overload"]


@pytest.mark.parametrize(("users", "servers", "think", "known"), [(64, 4, 8.0, True), (8, 1, 4.0, False)])
def test_users_who_think_are_a_closed_loop(users: int, servers: int, think: float, known: bool) -> None:
    """Of few users without names, all are in flight from time to time."""
    table = in_turns(users, servers, think)
    notes = diagnosed(table if known else replace(table, user=None)).notes
    assert any(f"Closed loop: {users} users" in note and "coordinated omission" in note for note in notes)


def test_inputs_of_little_effect_are_named_once() -> None:
    """A step that is earned, but explains less than a tenth of the spread."""
    table = simulated("quiet", 1, servers=8, load=0.05)
    step = 1 + 0.18 * (table.features["size"] > 1100)
    latency = TYPICAL_NS * step * np.random.default_rng(1).lognormal(0, 0.3, len(table))
    notes = diagnosed(replace(table, latency_ns=np.rint(latency).astype(np.int64))).notes
    assert "The service time does not follow size: nothing is attributed to inputs." in notes


@pytest.mark.parametrize("load", [0.4, 0.6])
def test_two_workers_that_are_often_idle_are_no_steady_load(load: float) -> None:
    """A server's own log, whose times begin when a worker takes the request."""
    rng = np.random.default_rng(2)
    free, began, came = [0.0, 0.0], [], 0.0
    service = TYPICAL_NS * rng.lognormal(0, 0.3, 3000)
    for takes in service.tolist():
        came += float(rng.exponential(TYPICAL_NS / 2 / load))
        began.append(max(came, heapq.heappop(free)))
        heapq.heappush(free, began[-1] + takes)
    notes = diagnosed(log_of(np.array(began), np.array(began) + service)).notes
    assert not any("hardly changes" in note for note in notes)
    assert all("a server that takes no more at a time" in note for note in notes if "Closed loop" in note)


def test_requests_of_nobody_are_no_user() -> None:
    table = in_turns(64, 4, 8.0)
    assert table.user is not None
    table.user[::100] = -1
    found = find_closed_loop(table.arrival_ns, table.latency_ns, table.user)
    assert found is not None and (found.users, found.known_by) == (64, "ids")


@pytest.mark.parametrize("users", [3, 200])
def test_users_whose_requests_overlap_are_no_closed_loop(users: int) -> None:
    table = fcfs("exponential", 0.9, 4)
    sender = np.random.default_rng(1).integers(0, users, len(table))
    assert not any("Closed loop" in note for note in diagnosed(replace(table, user=sender)).notes)


def test_requests_that_all_end_at_one_moment_show_no_queue() -> None:
    arrival = np.arange(500, dtype=np.int64) * 1_000_000
    assert infer_queue(arrival, 10**10 - arrival, 1_000) is None


@pytest.mark.parametrize("servers", [1, 4])
def test_the_slow_part_of_a_mixture_counts_towards_capacity(servers: int) -> None:
    """15 % take eight times as long, as the misses of a cache do: without them there is no overload."""
    result = diagnosed(fcfs("mixed", 1.2, servers, n=6000))
    assert result.verdict == "traffic.overload" and "would keep up" in result.causes[0].evidence


def test_long_services_of_a_few_waiting_clients_that_coincide_are_no_stall() -> None:
    rng = np.random.default_rng(8)
    service = TYPICAL_NS * np.where(rng.random(4000) < 0.1, 10.0, 1.0)
    end, arrival = [0.0] * 3, []
    for takes in service.tolist():
        arrival.append(heapq.heappop(end))
        heapq.heappush(end, arrival[-1] + takes)
    table = log_of(np.array(arrival), np.array(arrival) + service)
    assert "stall.shared" not in {cause.cause for cause in diagnosed(table).causes}


def test_no_number_of_servers_is_inferred_if_it_changed_meanwhile() -> None:
    """An excerpt of an overload in which three servers become six."""
    rng = np.random.default_rng(1)
    service = np.rint(rng.exponential(TYPICAL_NS, 4000)).astype(np.int64)
    arrival = np.cumsum(rng.exponential(TYPICAL_NS / 6 / 1.1, 4000)).astype(np.int64)
    free, ended = [0] * 3, []
    for row, (came, takes) in enumerate(zip(arrival.tolist(), service.tolist(), strict=True)):
        if row == 2500:
            free = [free[0]] * 3 + free
            heapq.heapify(free)
        ended.append(max(came, heapq.heappop(free)) + takes)
        heapq.heappush(free, ended[-1])
    seen = slice(1000, None)
    assert infer_queue(arrival[seen], (np.array(ended) - arrival)[seen], 1_000) is None


def test_batches_below_capacity_are_no_queue_of_servers() -> None:
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(12e6, 2000)).astype(np.int64)
    ended, now, row = np.zeros(2000, np.int64), 0, 0
    while row < 2000:
        now = max(now, int(arrival[row]) + 20_000_000)  # the window
        many = min(8, max(int(np.searchsorted(arrival, now, "right")) - row, 1))
        now += int(rng.normal(50e6, 2e6))
        ended[row : row + many] = now + np.arange(len(ended[row : row + many])) * 100_000
        row += many
    assert infer_queue(arrival, ended - arrival, 50_000) is None


@pytest.mark.parametrize("jitter", [0.0, 0.001, 0.05, 0.5])
def test_requests_that_only_take_long_show_no_queue(jitter: float) -> None:
    rng = np.random.default_rng(6)
    arrival = np.rint(np.cumsum(rng.exponential(TYPICAL_NS, 3000))).astype(np.int64)
    latency = np.rint(100 * TYPICAL_NS * rng.lognormal(0, jitter, 3000)).astype(np.int64)
    assert infer_queue(arrival, latency, 1_000) is None


@pytest.mark.parametrize("servers", [1, 4])
def test_overload_is_no_drift(servers: int) -> None:
    assert diagnosed(fcfs("constant", 1.2, servers, before=0.5)).verdict == "traffic.overload"
    from_the_start = diagnosed(fcfs("constant", 1.1, servers))
    assert "drift.unknown" not in {cause.cause for cause in from_the_start.causes}


def test_long_services_that_coincide_are_no_stall() -> None:
    causes = {cause.cause: cause for cause in diagnosed(fcfs("mixed", 0.6, 2)).causes}
    assert "stall.shared" not in causes


def test_a_queue_that_times_are_too_coarse_to_show_is_no_drift() -> None:
    table = fcfs("constant", 1.1, 2)
    coarse = replace(table, arrival_ns=table.arrival_ns // 10**9 * 10**9, resolution_ns=10**9)
    result = diagnosed(coarse)
    assert result.verdict == "inconclusive" and "drift.unknown" not in {cause.cause for cause in result.causes}


def test_time_outside_the_server_does_not_add_a_server() -> None:
    table = fcfs("mixed", 0.8, 2)
    begin = served_from(table.arrival_ns, _services(table, 2), 2)
    before = 200_000  # spent before the queue: the request is in it a little later than it arrived
    waited = {"queue": begin - table.arrival_ns}
    result = diagnosed(replace(table, latency_ns=table.latency_ns + before, parts=waited))
    evidence = {cause.cause: cause.evidence for cause in result.causes}
    assert "the wait is measured; 2 requests were served at once" in evidence["traffic.burst"]


def _services(table: RequestTable, servers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    end = table.arrival_ns + table.latency_ns
    return np.asarray(end - np.maximum(starts(table.arrival_ns, end, servers), table.arrival_ns))


def test_lost_and_cancelled_requests_have_no_latency() -> None:
    table = simulated("quiet", 11)
    status = table.status.copy()
    status[:100], status[100:130] = Status.ERROR, CANCELLED
    result = diagnosed(replace(table, status=status))
    ends = {"error": 100, "timeout": 0, "shed": 0, "unfinished": None, "cancelled": 30}
    assert result.requests == {"ok": 3870, **ends}
    assert result.verdict == "losing"  # 2.5 % of arrived requests, and p99 allows 1 %
    document = result.to_json()
    assert document["latency_ms"]["p99"] is None and document["latency_ms"]["p99_at_least"] > 0
    assert document["latency_ms_ok"]["p99"] > 0
    assert "p99 is lost among them. p99 of the requests that ended ok is " in result.sentence
    assert diagnosed(simulated("quiet", 11)).sentence.startswith("p99 is ")
    assert any("30 requests were cancelled" in note for note in result.notes)


def test_a_request_without_a_valid_latency_is_noted() -> None:
    table = simulated("quiet", 11)
    latency = table.latency_ns.copy()
    latency[7] = -1
    notes = diagnosed(replace(table, latency_ns=latency)).notes
    assert "1 request ended ok without a valid latency: left out." in notes


def test_what_is_not_recorded_is_unknown() -> None:
    document = diagnosed(replace(simulated("quiet", 11), has_status=False, timed=False)).to_json()
    assert document["requests"]["error"] is None
    assert document["throughput_rps"] is None
    assert document["dispatch_ms"]["p99"] is None
    assert document["windows"] == []


def streams(*, prompts: bool, before_ms: int = 10) -> RequestTable:
    """Forty streams of 60 tokens, one each 10 ms; three times all stand still for 150 ms.

    :param prompts: a request that comes so long before each has its first token as the streams go on.
    """
    n, tokens, usual, stall = 40, 60, 10_000_000, 150_000_000
    arrival = np.arange(n, dtype=np.int64) * 5_000_000
    moments = [300_000_000, 500_000_000, 700_000_000]
    row, start, length, latency = [], [], [], []
    for number, came in enumerate(arrival.tolist()):
        now = came + 30_000_000
        for _ in range(tokens):
            gap = usual
            for moment in moments:
                if now <= moment < now + usual:
                    gap = moment + stall - now
            row.append(number)
            start.append(now)
            length.append(gap)
            now += gap
        latency.append(now - came)
    first = np.full(n, 30_000_000)
    if prompts:
        until = stall + before_ms * 1_000_000
        arrival = np.concatenate([arrival, np.array(moments) + stall - until])
        first = np.concatenate([first, np.full(3, until)])
        latency += [until + 10_000_000] * 3
    order = np.argsort(arrival, kind="stable")
    table = RequestTable(
        arrival_ns=arrival,
        latency_ns=np.array(latency, np.int64),
        status=np.zeros(len(order), np.int8),
        first_ns=first.astype(np.int64),
        gaps=Gaps(row=np.array(row), start_ns=np.array(start), length_ns=np.array(length)),
    )
    return table.sorted()


@pytest.mark.parametrize(
    ("prompts", "before_ms", "cause"),
    [(True, 10, "batching.prefill"), (True, -80, "stall.shared"), (False, 0, "stall.shared")],
)
def test_shared_stalls_of_streams_are_attributed(prompts: bool, before_ms: int, cause: str) -> None:
    result = diagnosed(streams(prompts=prompts, before_ms=before_ms), percentile=50.0)
    listed = {each.cause: each for each in result.causes}
    assert listed[cause].named
    assert "3 times" in listed[cause].evidence
    other = {"batching.prefill", "stall.shared"} - {cause}
    assert not any(listed[each].named for each in other if each in listed)


def test_the_engines_log_explains_a_shared_stall() -> None:
    table = streams(prompts=False)
    ends = np.array([450_000_000, 650_000_000, 850_000_000])
    steps = EngineSteps(
        end_ns=ends, length_ns=np.full(3, 150_000_000), prefill_tokens=np.full(3, 4096), streams=np.full(3, 20)
    )
    result = diagnosed(replace(table, steps=steps), percentile=50.0)
    assert [cause.cause for cause in result.causes if cause.named] == ["batching.prefill"]


def test_prompts_computed_in_batches_are_a_queue() -> None:
    """Ninety prompts sent at once, four computed at a time in 130 ms; then each stream takes a second."""
    rng = np.random.default_rng(3)
    n, together, takes = 90, 4, 130_000_000
    arrival = np.sort(rng.integers(0, 50_000_000, n))
    first = (np.arange(n) // together + 1) * takes + rng.integers(0, 300_000, n)
    table = RequestTable(
        arrival_ns=arrival - arrival[0],
        latency_ns=first + 1_000_000_000 - arrival,
        status=np.zeros(n, np.int8),
        first_ns=first - arrival,
    )
    result = diagnosed(table, percentile=90.0)
    assert result.verdict == "traffic.burst"
    assert "in batches, one after the other" in result.causes[0].evidence
    assert result.stages_ms["queue"]["p99"] == pytest.approx(first.max() / 1e6 - 130, rel=0.05)


@pytest.mark.parametrize("times", [5.0, 1.1])
def test_the_slow_route_is_named_in_the_evidence(times: float) -> None:
    rng = np.random.default_rng(3)
    route = (rng.random(4_000) < 0.05).astype(np.int32)
    service = rng.lognormal(16, 0.05, 4_000) * np.where(route == 1, times, 1.0)
    table = RequestTable(
        arrival_ns=np.arange(4_000) * 10**9,
        latency_ns=service.astype(np.int64),
        status=np.zeros(4_000, np.int8),
        route=route,
        routes=("/a", "/login"),
    )
    evidence = next(cause.evidence for cause in diagnosed(table).causes if cause.cause == "input.size")
    assert ("'/login' takes " in evidence) is (times > 2)


@pytest.mark.parametrize("servers", [4, 40])
def test_a_stall_at_the_start_of_a_log_is_one_like_those_later(servers: int) -> None:
    """Nothing is answered in the first 0.4 s, as the log begins while the service stands still."""
    rng, n = np.random.default_rng(5), 4000
    arrival = np.cumsum(rng.exponential(TYPICAL_NS / 4 / 0.5, n))
    arrival -= arrival[0]
    service = TYPICAL_NS * rng.lognormal(0, 0.2, n)
    end = served(arrival, service, servers, np.array([-1e6, 4e9, 9e9]))
    causes = {cause.cause: cause for cause in diagnosed(log_of(arrival, end)).causes}
    assert causes["stall.shared"].evidence.startswith("3 times")
    assert causes["stall.shared"].tail_share > 0.8


def test_waits_for_a_dependency_that_coincide_by_chance_are_no_stall() -> None:
    """Short logs of two servers, each of which waits for 100 ms in 3 % of its requests."""
    found = 0
    for seed in range(40):
        rng, n = np.random.default_rng(seed), 600
        service = 1e7 * rng.lognormal(0, 0.2, n) + np.where(rng.random(n) < 0.03, 1e8, 0)
        arrival = np.cumsum(rng.exponential(float(service.mean()), n)).astype(np.int64)
        table = log_of(arrival, served(arrival.astype(float), service, 2, np.zeros(0)))
        found += "stall.shared" in {cause.cause for cause in diagnosed(table).causes}
    assert found <= 1  # one in forty may be mistaken


@pytest.mark.parametrize("rate", [8, 12, 15])
@pytest.mark.parametrize("stalled", [True, False])
def test_longer_services_for_a_while_are_no_stall(stalled: bool, rate: int) -> None:
    rng, n = np.random.default_rng(5), 400 * rate
    arrival = np.cumsum(rng.exponential(1 / rate, n))
    end = arrival + rng.lognormal(-3.3, 0.3, n)
    if stalled:  # for a second, forty times
        for begin in np.arange(5.0, 390.0, 10.0):
            inside = (arrival < begin + 1) & (end > begin)
            end[inside] += begin + 1 - np.maximum(arrival[inside], begin)
    else:  # each takes 0.4 s longer, for 30 s
        end += 0.4 * ((arrival > 200) & (arrival < 230))
    named = {cause.cause for cause in diagnosed(log_of(arrival * 1e9, end * 1e9)).causes if cause.named}
    assert ("stall.shared" in named) is stalled
