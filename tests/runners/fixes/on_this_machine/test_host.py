"""Fixes of the host: threads, waiting, pinning, priority, locality; each against cores, neighbors and permissions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import gc_freeze, locality_cores
from latfix.runners.fixes.host import parallel as host_parallel
from latfix.runners.fixes.host import pin as host_pin
from latfix.runners.fixes.host import priority as host_priority
from latfix.runners.fixes.host import threads as host_threads
from latfix.runners.fixes.host import wait_policy as host_wait_policy
from latfix.runners.fixes.host import workers as host_workers
from latfix.runners.host.cpu_topology import Domain, Topology, cores_text
from latfix.settings import RunnerSettings
from tests.profilers.samples import add_samples
from tests.runners.fixes.on_this_machine.conftest import make_context, make_record, verified

THREADS, WAIT, PARALLEL = host_threads.FIX, host_wait_policy.FIX, host_parallel.FIX
PIN, PRIORITY, WORKERS, LOCALITY = host_pin.FIX, host_priority.FIX, host_workers.FIX, locality_cores.FIX
BUSY = {"host.contention": 0.2}
QUIET = {"host.contention": 0.003, "unexplained": 0.2}


def machine(*domains: tuple[int, ...]) -> Topology:
    cores = tuple(core for domain in domains for core in domain)
    return Topology(
        cores=cores,
        physical=tuple((core,) for core in cores),
        domains=tuple(Domain(node=k, cores=domain) for k, domain in enumerate(domains)),
    )


def worker(*cores: int, nice: int = 0, migrations: int = 0, **more: int) -> dict[str, Any]:
    return {"cores": cores_text(cores), "allowed": list(cores), "nice": nice, "migrations": migrations, **more}


def placed(workers: list[dict[str, Any]], prepare: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    return {"worker": workers, "prepare": prepare or [], **more}


@pytest.mark.parametrize("fix", [WAIT, PIN, PRIORITY], ids=lambda fix: fix.id)
def test_it_applies_next_to_a_neighbor_and_shows_figures_without(fix: Any) -> None:
    assert fix.obstacle(make_context(make_record(), BUSY)) == ""
    assert "0.3 % of the tail" in fix.obstacle(make_context(make_record(), QUIET))


def test_involuntary_switches_are_a_reason_too() -> None:
    record = make_record()
    record.batches["compute_icsw"][:] = 2
    assert WAIT.obstacle(make_context(record, QUIET)) == ""


@pytest.mark.parametrize("fix", [THREADS, WAIT, PIN, PARALLEL, WORKERS, LOCALITY], ids=lambda fix: fix.id)
def test_on_a_gpu_the_hosts_threads_do_not_matter(fix: Any) -> None:
    assert fix.obstacle(make_context(make_record(device="cuda:0"), BUSY)) == "the model runs on a GPU"


def test_workers_that_crowd_each_other_out_share_the_cores() -> None:
    crowded = make_context(make_record(torch_threads=4), QUIET, workers=2, cores=4)
    assert THREADS.obstacle(crowded) == ""
    assert THREADS.change(crowded) == {"intra_op_threads": 2}
    assert THREADS.change(make_context(make_record(torch_threads=4), BUSY, workers=2)) == {"intra_op_threads": 1}
    # Two threads each are right as long as no other program uses the cores.
    settled = make_context(make_record(torch_threads=4), QUIET, workers=2, cores=4, intra_op_threads=2)
    assert "on 2 threads" in THREADS.obstacle(settled)


@pytest.mark.parametrize(
    ("cores", "workers", "counts"), [(8, 1, [8, 4, 2]), (8, 4, [8]), (6, 1, [6, 3]), (2, 1, [2])]
)
def test_workers_may_share_the_cores_in_several_ways(cores: int, workers: int, counts: list[int]) -> None:
    found = WORKERS.changes(make_context(make_record(), cores=cores, workers=workers))
    assert [change["workers"] for change in found] == counts
    assert all(change["intra_op_threads"] == cores // change["workers"] for change in found)


def operators_on(*threads: int) -> dict[str, Any]:
    return placed([worker(0, 1, 2, 3, operator_threads=count) for count in threads])


def test_threads_are_verified_by_the_workers_reports() -> None:
    four = make_record(placement=operators_on(4), torch_threads=4)

    def run(wanted: int, *threads: int) -> Any:
        return make_record(
            settings={"intra_op_threads": wanted}, placement=operators_on(*threads), torch_threads=wanted
        )

    assert verified(THREADS, run(1, 1), four)[0]
    assert verified(THREADS, run(2, 2, 2), four)[0]
    assert not verified(THREADS, run(2, 1), four)[0]
    assert not verified(THREADS, run(2, 2), make_record(placement=operators_on(2)))[0], "it was so before"
    # The main thread's number does not apply to workers: each thread has its own.
    effective, said = verified(THREADS, run(1, 1, 4), four, torch_threads=1)
    assert not effective and "workers ran operators on 1 and 4 threads, 4 without" in said
    assert not verified(THREADS, make_record(settings={"intra_op_threads": 1}), four, torch_threads=1)[0]


def test_another_backend_has_threads_of_its_own() -> None:
    four = make_record(placement=operators_on(4))
    one = make_record(settings={"intra_op_threads": 1}, placement=operators_on(1))
    assert verified(THREADS, one, four, conversions=[{"threads": 1}])[0]
    assert not verified(THREADS, one, four, conversions=[{"threads": 4}])[0]


def test_threads_of_workers_count_before_and_after() -> None:
    """A worker on one core has one thread, even if the main thread has more."""
    record = make_record(placement=operators_on(1), torch_threads=4)
    assert THREADS.obstacle(make_context(record, BUSY)) == "operators run on one thread already"


def test_sleeping_instead_of_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context(make_record(), BUSY)
    change = WAIT.change(context)
    assert change["env"]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "PASSIVE already" in WAIT.obstacle(make_context(make_record(), BUSY, env=change["env"]))
    assert "run on one thread" in WAIT.obstacle(make_context(make_record(torch_threads=1), BUSY))

    def run(spun_ms: float, **environment: str) -> Any:
        """40 batches; the counter starts again with a second window."""
        record = make_record(environment=environment)
        half = 20 * (3.0 + spun_ms) * 1e6
        record.samples["series"] = np.array(["thread.native.cpu_ns", "x"] * 4, dtype=object)
        record.samples["t_ns"] = np.array([0, 0, 9, 9, 1, 1, 8, 8])
        record.samples["value"] = np.array([5e9, 1, 5e9 + half, 2, 9e9, 3, 9e9 + half, 4])
        return record

    assert host_wait_policy.pool_cpu_ms(run(2.0)) == pytest.approx(5.0)
    assert verified(WAIT, run(0.1, OMP_WAIT_POLICY="PASSIVE"), run(2.0))[0]
    # The variable was there, but nothing spun before either.
    effective, said = verified(WAIT, run(0.0, OMP_WAIT_POLICY="PASSIVE"), run(0.0))
    assert not effective and "took 3 ms of CPU time a batch, 3 without" in said
    assert not verified(WAIT, run(0.1), run(2.0))[0], "the variable did not reach the process"
    unseen = make_record(environment={"OMP_WAIT_POLICY": "PASSIVE"})
    assert not verified(WAIT, unseen, run(2.0))[0], "what was not sampled is not zero"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "ACTIVE already" in WAIT.obstacle(context)


def test_idle_cores_are_used_by_large_requests() -> None:
    one = make_record(torch_threads=1, compute_ms=20.0, gap_ms=80.0)
    assert PARALLEL.obstacle(make_context(one, QUIET)) == ""
    assert PARALLEL.change(make_context(one, QUIET)) == {"intra_op_threads": 4}
    assert PARALLEL.change(make_context(one, QUIET, workers=2)) == {"intra_op_threads": 2}
    assert "compete for the cores" in PARALLEL.obstacle(make_context(one, BUSY))
    assert "has 1 core" in PARALLEL.obstacle(make_context(one, QUIET, workers=4))
    assert "unknown number" in PARALLEL.obstacle(make_context(make_record(torch_threads=0), QUIET))
    busy = make_record(torch_threads=1, compute_ms=20.0, gap_ms=10.0)
    assert "workers computed 67 % of the time" in PARALLEL.obstacle(make_context(busy, QUIET))
    shared = replace(busy, meta=busy.meta.updated(settings=RunnerSettings(batching="continuous", max_batch_size=4)))
    shared.batches["size"][:] = 4
    assert PARALLEL.obstacle(make_context(shared, QUIET)) == "", "four requests share the time of one worker"
    short = make_record(torch_threads=1, compute_ms=0.5, gap_ms=80.0)
    assert "0.5 ms, too short" in PARALLEL.obstacle(make_context(short, QUIET))

    def run(cores: float, threads: int) -> Any:
        record = make_record(placement=operators_on(threads), compute_ms=20.0)
        record.batches["process_cpu_ns"][:] = int(cores * 20e6)
        return record

    assert verified(PARALLEL, run(3.2, 4), run(1.0, 1))[0]
    assert not verified(PARALLEL, run(1.0, 4), run(1.0, 1))[0], "no operator used them"
    assert not verified(PARALLEL, run(1.05, 4), run(1.0, 1))[0], "by so little it is chance"
    assert not verified(PARALLEL, run(3.2, 1), run(1.0, 1))[0]


def test_a_worker_gets_cores_and_no_more_threads_than_those() -> None:
    assert PIN.change(make_context(make_record(torch_threads=4), BUSY)) == {"pin": "workers", "intra_op_threads": 3}
    assert PIN.change(make_context(make_record(torch_threads=1), BUSY, intra_op_threads=1)) == {"pin": "workers"}
    # A user who keeps operators to one thread (OMP_NUM_THREADS=1) does not get three by being pinned.
    assert PIN.change(make_context(make_record(torch_threads=1), BUSY)) == {"pin": "workers"}
    assert "pin = workers already" in PIN.obstacle(make_context(make_record(), BUSY, pin="workers"))
    assert "5 workers on 4 cores" in PIN.obstacle(make_context(make_record(), BUSY, workers=5))


def test_among_busy_neighbors_a_worker_must_be_able_to_move() -> None:
    def neighbors(cores: float) -> RunRecord:
        at = np.arange(5) * 10**9
        spent = at, np.full(5, cores * 1e9) * (at > 0)
        series = dict.fromkeys(("other.all.spent_ns", "other.7.hog.spent_ns"), spent)
        return add_samples(make_record(), series)

    found = PIN.obstacle(make_context(neighbors(2.0), BUSY))
    assert found == "other programs kept 50 % of the machine busy, and a pinned worker cannot get out of their way"
    assert PIN.obstacle(make_context(neighbors(1.0), BUSY)) == ""


def test_pinning_is_verified_by_the_allowed_cores() -> None:
    everywhere = make_record(placement=placed([worker(0, 1, 2, 3, migrations=31)]))
    mine = make_record(placement=placed([worker(3)], [worker(0, 1, 2)]))
    effective, said = verified(PIN, mine, everywhere)
    assert effective
    assert "workers on cores 3, 0-3 without; prepare threads on others; workers were moved 0 times" in said
    assert "31 without" in said
    assert not verified(PIN, everywhere, everywhere)[0]
    both = make_record(placement=placed([worker(2, 3), worker(3)]))
    assert not verified(PIN, both, everywhere)[0], "two workers share a core"
    assert not verified(PIN, mine, make_record())[0] and not verified(PIN, make_record(), everywhere)[0]
    assert (
        "on the same cores" in verified(PIN, make_record(placement=placed([worker(3)], [worker(3)])), everywhere)[1]
    )
    note = "cores 3 were refused (Invalid argument)"
    refused = make_record(placement=placed([worker(3)]), setup_notes=[note, "prefault_mb: no room"])
    effective, said = verified(PIN, refused, everywhere)
    assert not effective and said.endswith(note), "of two workers one stayed where it was"


def test_priority_goes_as_far_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context(make_record(), BUSY)
    assert PRIORITY.change(context) == {"nice": -10}
    assert "nice = -10 already" in PRIORITY.obstacle(make_context(make_record(), BUSY, nice=-10))
    monkeypatch.setattr(host_priority, "least_nice", lambda: -4)
    assert PRIORITY.change(context) == {"nice": -4}
    monkeypatch.setattr(host_priority, "least_nice", lambda: 0)
    found = PRIORITY.obstacle(context)
    assert "may not go below nice 0" in found and "CAP_SYS_NICE or RLIMIT_NICE" in found


def test_priority_is_verified_by_threads_and_their_group() -> None:
    before = make_record(placement=placed([worker(0)], [worker(0)]))

    def run(thread: int, prepare: int, group: int | None) -> Any:
        settings = {"nice": -10}
        found = placed([worker(0, nice=thread)], [worker(0, nice=prepare)], autogroup_nice=group)
        return make_record(settings=settings, placement=found)

    assert verified(PRIORITY, run(-10, -10, None), before)[0]
    assert verified(PRIORITY, run(-10, -10, -10), before)[0]
    assert not verified(PRIORITY, run(-10, 0, -10), before)[0]
    effective, said = verified(PRIORITY, run(-10, -10, 0), before)
    assert not effective and "the session's scheduling group stayed at nice 0" in said
    assert not verified(PRIORITY, make_record(settings={"nice": -10}), before)[0]
    note = "nice = -10 was refused (Permission denied)"
    refused = make_record(settings={"nice": -10}, placement=placed([worker(0)]), setup_notes=[note])
    effective, said = verified(PRIORITY, refused, before)
    assert not effective and said.endswith(note)


def test_more_workers_need_room_for_their_models() -> None:
    memory = {"model_bytes": 1 << 30, "available_bytes": 4 << 30}
    assert "3,072 MiB of 4,096 MiB" in WORKERS.obstacle(make_context(make_record(memory=memory)))
    assert WORKERS.obstacle(make_context(make_record(memory={**memory, "available_bytes": 8 << 30}))) == ""
    two = make_record(memory=memory, settings={"workers": 2})
    assert WORKERS.obstacle(make_context(two, workers=2)) == "", "each of the two has half of it"


def test_locality_wants_more_than_one_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    context = make_context(make_record(torch_threads=4), BUSY)
    assert LOCALITY.obstacle(context) == ""
    assert LOCALITY.change(context) == {"pin": "locality", "intra_op_threads": 2}
    four = make_context(make_record(torch_threads=1), BUSY, workers=4, intra_op_threads=1)
    assert LOCALITY.change(four) == {"pin": "locality"}
    assert "pin = locality already" in LOCALITY.obstacle(make_context(make_record(), BUSY, pin="locality"))
    assert "0.0 % of the tail" in LOCALITY.obstacle(make_context(make_record(), {"unexplained": 1.0}))
    monkeypatch.setattr(locality_cores, "read_topology", lambda: machine((0, 1)))
    assert "cores 0-1 share one memory node" in LOCALITY.obstacle(context)
    monkeypatch.setattr(locality_cores, "read_topology", lambda: machine())
    assert "no processor affinity" in LOCALITY.obstacle(context)


def test_locality_is_verified_by_the_allowed_cores() -> None:
    everywhere = make_record(placement=placed([worker(0, 1, 2, 3), worker(0, 1, 2, 3)]))
    pages = {"N0": 10, "N1": 90}
    apart = make_record(placement=placed([worker(2, 3), worker(0, 1)], node_pages=pages))
    effective, said = verified(LOCALITY, apart, everywhere)
    assert effective and "2 of 2, 0 of 2 without; memory on N0 10 %, N1 90 %" in said
    astride = make_record(placement=placed([worker(2, 3), worker(1, 2)]))
    assert not verified(LOCALITY, astride, everywhere)[0]
    assert not verified(LOCALITY, apart, apart)[0], "it was so before"
    assert not verified(LOCALITY, make_record(), make_record())[0]


def test_a_frozen_collector_reports_forced_collections() -> None:
    done = {"young": 30, "forced": 2, "full": 1, "full_forced": 1, "collected": 900, "longest_ns": 1, "frozen": 5}
    effective, said = verified(
        gc_freeze.FIX, make_record(collections=done), make_record(), gc_frozen=5, gc_enabled=False
    )
    waited = "3 that could not wait any longer (1 of them full)"
    assert effective and f"31 collections in idle moments, {waited}, 900 objects freed" in said
