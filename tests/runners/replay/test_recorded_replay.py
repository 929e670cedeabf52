"""A thread of the service that dies ends the replay at once and says why."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from latfix.errors import RunnerError
from latfix.runners.replay.recorded_replay import ThreadDeaths


def die(name: str) -> None:
    def fail() -> None:
        raise ValueError("half a sentence")

    thread = threading.Thread(target=fail, name=name)
    thread.start()
    thread.join()


@pytest.fixture()
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    deaths: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", deaths.append)
    return deaths


def test_a_dead_worker_stops_the_replay(told: list[Any]) -> None:
    stop, hook = threading.Event(), threading.excepthook
    with ThreadDeaths(stop) as deaths:
        deaths.check()
        die("latfix-worker-0")
        assert stop.is_set() and len(told) == 1
        with pytest.raises(RunnerError, match=r"latfix-worker-0 .*ValueError: half a sentence"):
            deaths.check()
    assert threading.excepthook is hook, "the next replay of this process does not stack its own on it"


def test_threads_of_user_code_may_die(told: list[Any]) -> None:
    stop = threading.Event()
    with ThreadDeaths(stop) as deaths:
        die("refresher")
        assert not stop.is_set() and len(told) == 1
        deaths.check()
