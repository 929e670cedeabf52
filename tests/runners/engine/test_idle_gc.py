"""Garbage collection off the request path: when idle, and in any case before garbage exceeds a bound."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from latfix.runners.engine import idle_gc as module
from latfix.runners.engine.idle_gc import IdleCollector


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[IdleCollector]:
    """A collector with small bounds."""
    for name, value in (
        ("IDLE_OBJECTS", 200),
        ("FORCED_OBJECTS", 2_000),
        ("IDLE_SURVIVORS", 3_000),
        ("FORCED_SURVIVORS", 10_000),
    ):
        monkeypatch.setattr(module, name, value)
    made = IdleCollector()
    made.install()
    try:
        yield made
    finally:
        made.remove()


class Node:
    """A reference cycle: lives until a collection."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Node.alive += 1

    def __del__(self) -> None:
        Node.alive -= 1


def test_young_objects_are_collected_when_idle_and_otherwise_only_when_many(collector: IdleCollector) -> None:
    held = [[k] for k in range(500)]
    collector.between_batches(idle=False)
    assert (collector.done.young, collector.done.forced) == (0, 0), "requests wait"
    collector.between_batches(idle=True)
    assert (collector.done.young, collector.done.forced) == (1, 0)
    collector.between_batches(idle=True)
    assert (collector.done.young, collector.done.forced) == (1, 0), "no new objects"
    held += [[k] for k in range(2_500)]
    collector.between_batches(idle=False)
    assert (collector.done.young, collector.done.forced) == (1, 1)
    assert collector.done.longest_ns > 0
    del held


def test_survivors_are_collected_in_full_when_idle(collector: IdleCollector) -> None:
    held: list[Any] = []
    while not collector.done.full:
        assert len(held) < 50_000, "no full collection"
        held += [[k] for k in range(500)]
        collector.between_batches(idle=True)
    assert collector.done.full == 1 and collector.done.full_forced == 0
    assert 3_000 <= len(held) <= 10_000


def test_old_garbage_is_found_although_it_is_never_idle(collector: IdleCollector) -> None:
    """Cycles that survived a young collection are found only by a full one."""
    Node.alive = 0
    held: list[Any] = []
    most = 0
    for _ in range(60):
        held = [Node() for _ in range(1_000)]
        fillers = [[k] for k in range(1_500)]
        collector.between_batches(idle=False)  # alive now, so they survive this collection
        del fillers
        most = max(most, Node.alive)
    assert collector.done.full_forced >= 1 and collector.done.full == 0
    assert most < 40_000, "60,000 nodes were made"
    assert collector.done.collected > 10_000
    del held


def test_a_heap_that_grows_for_good_is_not_walked_ever_more_often(collector: IdleCollector) -> None:
    """Like Python's own rule: a full collection once the survivors reach a quarter of the living objects."""
    held: list[Any] = []
    for _ in range(400):
        held += [[k] for k in range(500)]
        collector.between_batches(idle=True)
    full = collector.done.full
    assert 1 <= full < 25, "200,000 objects in steps of 3,000 would be 66"


def test_objects_that_died_by_themselves_do_not_put_a_full_collection_off(collector: IdleCollector) -> None:
    for _ in range(200):
        held = [[k] for k in range(500)]
        collector.between_batches(idle=True)
        del held
    fulls = collector.done.full
    assert fulls >= 5
    for _ in range(100):
        held = [[k] for k in range(500)]
        collector.between_batches(idle=True)
        del held
    assert collector.done.full >= fulls + 2, "living objects count, not all that were created"


def test_only_one_thread_collects(collector: IdleCollector) -> None:
    held = [[k] for k in range(500)]
    with collector._lock:
        collector.between_batches(idle=True)
    assert collector.done.young == 0
    del held


def test_installed_it_freezes_and_switches_the_automatic_one_off(collector: IdleCollector) -> None:
    assert not gc.isenabled()
    assert len(gc.get_objects()) < collector.done.frozen
    before = gc.get_stats()
    kept = [[k] for k in range(50_000)]
    assert gc.get_stats() == before
    del kept


@pytest.mark.parametrize("enabled", [True, False])
def test_removed_it_leaves_things_as_they_were(enabled: bool) -> None:
    """A program that disabled the automatic collector finds it disabled."""
    collector = IdleCollector()
    if not enabled:
        gc.disable()
    try:
        collector.install()
        collector.remove()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert gc.get_freeze_count() == 0
