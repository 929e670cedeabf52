"""Collection out of the requests' way: frozen, off, and done between batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from latfix.runners.engine.idle_gc import IDLE_OBJECTS, IdleCollector


@pytest.fixture
def collector() -> Iterator[IdleCollector]:
    made = IdleCollector()
    made.install()
    try:
        yield made
    finally:
        made.remove()


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def test_installed_it_freezes_and_switches_the_automatic_one_off(collector: IdleCollector) -> None:
    assert not gc.isenabled()
    assert collector.frozen > 0
    before = _collections()
    kept = [[k] for k in range(50_000)]
    assert _collections() == before
    del kept


@pytest.mark.parametrize("enabled", [True, False])
def test_removed_it_leaves_things_as_they_were(enabled: bool) -> None:
    """A program that has switched the automatic collector off finds it so."""
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


def test_an_idle_moment_is_used_once_enough_has_come(collector: IdleCollector) -> None:
    before = _collections()
    collector.between_batches(idle=True)
    assert _collections() == before, "nothing new to look at"

    kept = [[k] for k in range(2 * IDLE_OBJECTS)]
    collector.between_batches(idle=False)
    assert _collections() == before, "requests wait"
    collector.between_batches(idle=True)
    assert _collections() == before + 1
    del kept


def test_garbage_in_cycles_is_found(collector: IdleCollector) -> None:
    class Node:
        alive = 0

        def __init__(self) -> None:
            self.me = self
            Node.alive += 1

        def __del__(self) -> None:
            Node.alive -= 1

    for _ in range(2 * IDLE_OBJECTS):
        Node()
    collector.between_batches(idle=True)
    assert Node.alive < IDLE_OBJECTS
