"""A worker's thread outlives its work; what hangs or dies does not take the next work with it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.runners.engine.serving_thread import ServingThread
from latfix.runners.measure.compute_pace import measure_pace
from latfix.traffic.schedule import Traffic
from tests.runners.engine.served import engine_threads, loaded_service

#: Its model notes the threads that call it.
ADAPTER = """
import threading
import torch
from latfix import Workload

CALLS = []


class Noting(torch.nn.Module):
    def forward(self, x):
        CALLS.append(threading.get_native_id())
        return x


class Service(Workload):
    def load(self, device):
        return Noting()

    def prepare(self, request):
        return torch.ones(1)
"""


def _settled(what: Callable[[], bool]) -> bool:
    until = time.monotonic() + 10
    while not what() and time.monotonic() < until:
        time.sleep(0.005)
    return what()


def _die() -> None:
    raise MemoryError("its thread dies")


def _hold(held: object) -> None:
    del held


def _wait(free: threading.Event) -> None:
    assert free.wait(20)


def test_work_is_done_by_one_thread_that_has_the_name_of_each() -> None:
    thread, seen = ServingThread(), list[tuple[str, int]]()

    def note() -> None:
        seen.append((threading.current_thread().name, threading.get_native_id()))

    jobs = []
    for name in ("a", "b"):
        jobs.append(thread.start(note, name))
        jobs[-1].join()
    thread.run(note, "c")
    assert [name for name, _ in seen] == ["a", "b", "c"]
    assert {ident for _, ident in seen} == {job.native_id for job in jobs}
    thread.end()


def test_an_error_of_awaited_work_is_the_callers() -> None:
    thread = ServingThread()
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 // 0, "a")
    assert thread.run(lambda: 1, "a") == 1
    thread.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_work_that_dies_or_hangs_the_next_gets_another_thread() -> None:
    thread, free = ServingThread(), threading.Event()
    dead = thread.start(_die, "a")
    dead.join()
    # Its error is shown after that; pytest would count it as the next test's.
    assert _settled(lambda: dead.native_id not in {each.native_id for each in threading.enumerate()})
    assert thread.run(threading.get_native_id, "b") != dead.native_id
    stuck = thread.start(partial(_wait, free), "latfix-stuck")
    assert thread.run(threading.get_native_id, "b") != stuck.native_id and not stuck.ended
    thread.end()
    free.set()
    stuck.join()
    assert _settled(lambda: "latfix-stuck" not in engine_threads())


def test_the_thread_ends_with_its_object_and_keeps_nothing_of_its_work() -> None:
    class Held:
        pass

    held, thread, gone = Held(), ServingThread(), threading.Event()
    weakref.finalize(held, gone.set)
    job = thread.start(partial(_hold, held), "latfix-last")
    job.join()
    del held
    assert _settled(gone.is_set)
    del thread
    gc.collect()
    assert _settled(lambda: job.native_id not in {each.native_id for each in threading.enumerate()})


@pytest.mark.parametrize("shared", [False, True])
def test_warm_up_measurements_and_engines_call_each_model_on_one_thread(tmp_path: Path, shared: bool) -> None:
    """torch keeps cuDNN's plans by thread: a replay would pay again for each shape that the warm-up has run."""
    (tmp_path / "noting.py").write_text(ADAPTER)
    traffic = Traffic.plain(np.arange(8) * 10_000_000)
    settings: dict[str, Any] = {"workers": 2, "shared_model": shared, "warmup_shapes": 1, "max_batch_size": 1}
    service = loaded_service(tmp_path, "noting:Service", warm=traffic, **settings)
    calls: list[int] = type(service.models.instances[0].model).forward.__globals__["CALLS"]
    assert len(set(calls)) == 2, "a thread for each worker"
    measure_pace(service, traffic, [[0]], 0.001, workers=2)
    for _ in range(2):
        service.predict([traffic.request(k) for k in range(8)])
    assert len(calls) > 20 and len(set(calls)) == 2
    service.release()
    assert not {*calls} & {each.native_id for each in threading.enumerate()}
