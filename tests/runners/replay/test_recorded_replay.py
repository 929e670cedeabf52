"""A thread of the service that dies ends the replay at once and says why."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest

from latfix.errors import RunnerError
from latfix.runners.replay.recorded_replay import ThreadDeaths


@pytest.mark.parametrize(("name", "ends"), [("latfix-worker-0", True), ("refresher", False)])
def test_a_dead_worker_stops_the_replay_and_a_thread_of_user_code_does_not(
    name: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    stop, hook = threading.Event(), threading.excepthook
    with ThreadDeaths(stop) as deaths:
        deaths.check()
        thread = threading.Thread(target=int, args=("half a sentence",), name=name)
        thread.start()
        thread.join()
        assert stop.is_set() is ends and len(told) == 1
        with pytest.raises(RunnerError, match=f"{name} .*ValueError.*half a sentence") if ends else nullcontext():
            deaths.check()
    assert threading.excepthook is hook, "the next replay of this process does not stack its own on it"
