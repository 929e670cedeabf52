"""Placement of threads: on separate cores if there are enough, otherwise none."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from latfix.runners.host.cpu_placement import Placement, Places, domain_of, limit_operator_threads, plan_placement
from latfix.runners.host.cpu_topology import Domain, Topology
from latfix.settings import Pinning, RunnerSettings


def topology(*domains: tuple[int, ...], threads: int = 1) -> Topology:
    """Domains of physical cores; with two threads each, thread ``k + 100`` belongs to core ``k``."""
    physical = [tuple(core + 100 * k for k in range(threads)) for domain in domains for core in domain]
    return Topology(
        cores=tuple(sorted(core for group in physical for core in group)),
        physical=tuple(physical),
        domains=tuple(
            Domain(node=n, cores=tuple(sorted(core + 100 * k for core in domain for k in range(threads))))
            for n, domain in enumerate(domains)
        ),
    )


def place(machine: Topology, pin: Pinning, *, workers: int, prepare: int, threads: int) -> Placement:
    settings = RunnerSettings(workers=workers, prepare_threads=prepare, intra_op_threads=threads)
    return plan_placement(machine, settings, pin)


@examples(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    workers=st.integers(1, 12),
    prepare=st.integers(1, 3),
    threads=st.integers(0, 4),
    hyper=st.integers(1, 2),
)
def test_workers_never_share_a_core_and_have_no_fewer_than_one(
    sizes: list[int], workers: int, prepare: int, threads: int, hyper: int
) -> None:
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    machine = topology(*(tuple(range(s, s + n)) for s, n in zip(starts, sizes, strict=True)), threads=hyper)
    found = place(machine, "workers", workers=workers, prepare=prepare, threads=threads)
    assert len(found.workers) == workers and len(found.prepare) == prepare
    if found.obstacle:
        assert sum(sizes) < 2 or workers > sum(sizes)
        assert set(found.workers) == {()} and set(found.prepare) == {()} and found.aside == ()
        return
    taken = [core for cores in found.workers for core in cores]
    assert len(taken) == len(set(taken)) and set(taken) <= set(machine.cores)
    assert len({core % 100 for core in taken}) == len(taken), "each on its own physical core"
    assert all(cores and (not threads or len(cores) <= threads) for cores in found.workers)
    assert not set(found.aside) & set(taken)
    assert all(cores == found.aside for cores in found.prepare)
    if sum(sizes) > workers:
        assert found.aside, "a core is free for other threads"


def test_one_worker_on_two_cores_leaves_the_first_to_other_threads() -> None:
    found = place(topology((0, 1)), "workers", workers=1, prepare=2, threads=0)
    assert (found.workers, found.prepare, found.aside) == (((1,),), ((0,), (0,)), (0,))


def test_as_many_workers_as_cores_pin_no_other_thread() -> None:
    found = place(topology((0, 1)), "workers", workers=2, prepare=1, threads=0)
    assert sorted(found.workers) == [(0,), (1,)]
    assert found.prepare == ((),) and found.aside == ()


def test_the_second_threads_of_cores_are_left_to_other_threads() -> None:
    found = place(topology((0, 1), threads=2), "workers", workers=2, prepare=1, threads=0)
    assert sorted(found.workers) == [(0,), (1,)] and found.aside == (100, 101)
    one = place(topology((0, 1), threads=2), "workers", workers=1, prepare=1, threads=0)
    assert one.workers == ((1,),) and one.aside == (0, 100), "a free core is better than half of the worker's"


def test_a_worker_lies_within_one_cache_where_it_fits() -> None:
    found = place(topology((0, 1, 2), (3, 4, 5)), "workers", workers=2, prepare=1, threads=2)
    assert sorted(found.workers) == [(1, 2), (4, 5)]


@pytest.mark.parametrize(
    ("workers", "cores", "expected"),
    [
        (3, (0, 1), "3 workers on 2 cores"),
        (1, (0,), "1 worker on 1 core"),
        (1, None, "this system has no processor affinity"),
    ],
)
def test_too_few_cores_are_an_obstacle(workers: int, cores: tuple[int, ...] | None, expected: str) -> None:
    machine = topology() if cores is None else topology(cores)
    assert expected in place(machine, "workers", workers=workers, prepare=1, threads=1).obstacle


def test_locality_spreads_workers_and_takes_their_prepare_threads_along() -> None:
    machine = topology((0, 1), (2, 3), (4, 5))
    two = place(machine, "locality", workers=2, prepare=3, threads=0)
    assert two.workers == ((4, 5), (2, 3)) and two.prepare == ((4, 5), (2, 3), (4, 5)) and two.aside == (0, 1)
    four = place(machine, "locality", workers=4, prepare=1, threads=0)
    assert sorted(four.workers) == [(0, 1), (2, 3), (4, 5), (4, 5)] and four.aside == ()


def test_locality_on_one_domain_is_an_obstacle() -> None:
    found = place(topology((0, 1, 2)), "locality", workers=2, prepare=1, threads=0)
    assert "cores 0-2 share one memory node" in found.obstacle
    assert found.workers == ((), ())


def test_the_domain_of_cores() -> None:
    machine = topology((0, 1), (2, 3))
    assert domain_of(machine, (2,)) == machine.domains[1]
    assert domain_of(machine, (1, 2)) is None and domain_of(machine, ()) is None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """The system calls made; nothing is changed."""
    calls: list[tuple[str, object]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: calls.append(("cores", tuple(sorted(cores)))))
    monkeypatch.setattr(os, "setpriority", lambda *to: calls.append(("nice", to[2])))
    return calls


def test_each_thread_takes_its_own_place(calls: list[tuple[str, object]]) -> None:
    places = Places(RunnerSettings(pin="workers", nice=-5), topology((0, 1, 2)))
    assert places.worker(0) == 2
    assert places.prepare(0) == 1
    assert calls == [("cores", (1, 2)), ("nice", -5), ("cores", (0,)), ("nice", -5)]
    assert places.notes == []


def test_operators_get_no_more_threads_than_cores_or_settings(calls: list[tuple[str, object]]) -> None:
    assert Places(RunnerSettings(pin="workers", intra_op_threads=1), topology((0, 1, 2))).worker(0) == 1
    assert Places(RunnerSettings(pin="workers"), topology((0, 1, 2))).worker(0) == 2
    assert Places(RunnerSettings(), topology((0, 1, 2))).worker(0) == 0, "the framework decides"
    assert ("nice", 0) not in calls


def test_off_changes_nothing(calls: list[tuple[str, object]]) -> None:
    places = Places(RunnerSettings())
    places.worker(0), places.prepare(0)
    with places.aside():
        pass
    assert calls == [] and places.notes == []


def test_an_impossible_placement_is_noted_once(calls: list[tuple[str, object]]) -> None:
    places = Places(RunnerSettings(pin="workers", workers=3), topology((0, 1)))
    places.worker(0), places.worker(1)
    assert calls == []
    assert places.notes == ["pin = workers: 3 workers on 2 cores: a worker cannot have a core to itself"]


def test_a_refused_placement_is_noted_and_the_thread_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    monkeypatch.setattr(os, "setpriority", refuse)
    places = Places(RunnerSettings(pin="workers", nice=-20), topology((0, 1)))
    places.worker(0), places.worker(0)
    assert places.notes == [
        "cores 1 were refused (Operation not permitted)",
        "nice = -20 was refused (Operation not permitted)",
    ]


def test_coming_back_to_cores_that_are_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[set[int]] = []

    def only_once(_: int, cores: object) -> None:
        if taken:
            raise OSError(22, "Invalid argument")
        taken.append(set(cores))  # type: ignore[call-overload]

    monkeypatch.setattr(os, "sched_setaffinity", only_once, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    with Places(RunnerSettings(pin="workers"), topology((0, 1))).aside():
        assert taken == [{0}]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no processor affinity")
def test_a_thread_really_moves_and_comes_back() -> None:
    """Uses the last core, so one core is enough."""
    usable = sorted(os.sched_getaffinity(0))
    places = Places(RunnerSettings(), None)

    def run() -> None:
        object.__setattr__(places.placement, "workers", ((usable[-1],),))
        object.__setattr__(places.placement, "aside", (usable[0],))
        with places.aside():
            assert os.sched_getaffinity(0) == {usable[0]}
        assert sorted(os.sched_getaffinity(0)) == usable
        assert places.worker(0) == 1
        assert os.sched_getaffinity(0) == {usable[-1]}

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
    assert sorted(os.sched_getaffinity(0)) == usable, "only the thread itself moved"


@pytest.mark.parametrize("flush", [True, False])
def test_denormals_are_flushed_on_every_thread_of_an_operator(flush: bool) -> None:
    """Threads started for the operator inherit the setting; other threads keep their own."""
    tiny = torch.full((1 << 20,), 1e-39)

    def lost() -> int:
        limit_operator_threads(RunnerSettings(flush_denormal=flush, intra_op_threads=2), 0)
        return int(torch.count_nonzero((tiny * 0.5).view(torch.int32) == 0))

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lost).result() == (len(tiny) if flush else 0)
    finally:
        torch.set_num_threads(before)
    assert torch.count_nonzero((tiny[:9] * 0.5).view(torch.int32)) == 9
