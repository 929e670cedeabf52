"""Stack samples: the user's frames are kept, latfix's and waiting threads are not."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from latfix.profilers.code_lines.stack_samples import StackLog, is_user_code, running_frames
from latfix.profilers.probes.gil_probe import LockProbe
from latfix.profilers.probes.stage_recorder import SampleLog


def prepare_features(begun: threading.Event, go_on: threading.Event) -> None:
    """Stands for code of a user."""
    begun.set()
    go_on.wait()


@contextmanager
def working(name: str) -> Iterator[None]:
    begun, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=prepare_features, args=(begun, go_on), name=name)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        go_on.set()
        thread.join()


def samples_of(log: SampleLog) -> list[str]:
    return log.drain(0).splitlines()


def test_the_user_s_frames_are_kept_innermost_first() -> None:
    samples = SampleLog()
    log = StackLog(samples)
    with working("latfix-prepare-3"):
        log.watch()
        log.look(70)
        log.look(90)
    (stack,) = log.stacks
    assert stack[0].startswith(f"{__file__}:") and stack[0].endswith(" prepare_features")
    assert samples_of(samples) == ['[70, "stack.prepare.3", 0]', '[90, "stack.prepare.3", 0]']


def test_nothing_is_collected_while_frames_are_walked() -> None:
    """A collection lets other threads run and leave the frames being walked (a crash in Python 3.11)."""
    seen: list[str] = []

    def look(phase: str, _: dict[str, int]) -> None:
        seen.append(phase)

    known = gc.get_threshold()
    with working("latfix-prepare-3"), running_frames() as frames:
        gc.callbacks.append(look)
        gc.set_threshold(1)
        try:
            kept = [[[frame, frame.f_back]] for frame in frames.values()]
        finally:
            gc.set_threshold(*known)
            gc.callbacks.remove(look)
    assert kept and not seen and gc.isenabled()


def test_threads_of_others_and_those_that_wait_are_left_out() -> None:
    samples, end = SampleLog(), threading.Event()
    idle = threading.Thread(target=end.wait, name="latfix-worker-0")
    idle.start()
    log = StackLog(samples)
    with working("user-thread"):
        log.watch()
        log.look(70)
    end.set()
    idle.join()
    log.look(90)
    assert log.stacks == [] and samples_of(samples) == []


def test_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latfix.profilers.code_lines.stack_samples._MOST_STACKS", 0)
    samples = SampleLog()
    log = StackLog(samples)
    with working("latfix-prepare-0"):
        log.watch()
        log.look(70)
    assert log.stacks == [] and samples_of(samples) == []


def test_whose_a_file_is() -> None:
    import latfix

    package = Path(latfix.__file__).parent
    assert not is_user_code(str(package / "runners" / "engine" / "worker.py"))
    assert is_user_code(str(package / "sample_workloads" / "recommender" / "workload.py"))
    assert is_user_code("/home/me/ranker/workload.py") and not is_user_code(threading.__file__)


def test_the_lock_probe_looks_each_time() -> None:
    looked: list[int] = []
    with LockProbe(SampleLog(), period_s=0.001, look=looked.append) as probe:
        while len(looked) < 3:
            pass
    assert len(looked) == probe.readings and looked == sorted(looked)
