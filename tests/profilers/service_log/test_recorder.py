"""Functions and blocks recorded as requests, and diagnoses of planted causes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import latfix
from latfix.errors import InputError
from latfix.profilers.recordings import service_log
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.request_table import CANCELLED, RequestTable
from latfix.profilers.service_log.recorder import flush
from latfix.profilers.service_log.request_counters import OF_THREAD
from latfix.results.diagnosis import Diagnosis
from latfix.spans import collected
from latfix.stages import Status


def _nothing() -> None:
    """A request that takes no time."""


def _nap() -> None:
    time.sleep(0.001)


def _table(folder: Path) -> RequestTable:
    flush()
    return service_log.read(sorted(folder.iterdir()))


def _diagnosis(folder: Path) -> Diagnosis:
    flush()
    return diagnose_recording(folder, ReadOptions())


def _burn(milliseconds: float) -> None:
    end = time.thread_time_ns() + milliseconds * 1e6
    while time.thread_time_ns() < end:
        pass


def test_a_wrapped_function_is_unchanged_and_every_call_is_a_row(tmp_path: Path) -> None:
    @latfix.record(tmp_path, features=lambda x: {"size": x})
    def double(x: int) -> int:
        """Twice."""
        if x < 0:
            raise ValueError("negative")
        return 2 * x

    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert [double(x) for x in range(5)] == [0, 2, 4, 6, 8]
    with pytest.raises(ValueError, match="negative"):
        double(-1)
    table = _table(tmp_path)
    assert table.status.tolist() == [Status.OK] * 5 + [Status.ERROR]
    assert table.features["size"].tolist() == [0, 1, 2, 3, 4, -1]
    assert (table.latency_ns > 0).all()


def test_concurrent_coroutines_and_blocks_are_separate_rows(tmp_path: Path) -> None:
    @latfix.record(tmp_path)
    async def wait(name: str, seconds: float) -> None:
        with latfix.span(name):
            await asyncio.sleep(seconds)

    async def block(seconds: float) -> None:
        async with latfix.record(tmp_path, route="block"):
            with latfix.span("inside"):
                await asyncio.sleep(seconds)

    async def everything() -> None:
        late = asyncio.create_task(wait("late", 60))
        await asyncio.gather(wait("a", 0.2), wait("b", 0.1), block(0.15))
        late.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await late

    asyncio.run(everything())
    table = _table(tmp_path)
    assert sorted(table.status.tolist()) == [Status.OK] * 3 + [CANCELLED]
    assert set(table.routes) == {"wait", "block"}
    for name in ("a", "b", "inside"):
        (waited,) = (column for column in (table.parts[name],))
        assert (waited > 0).sum() == 1
        assert (waited[waited > 0] > 0.5 * table.latency_ns[waited > 0]).all()


def test_blocks_nest_and_spans_go_to_the_innermost(tmp_path: Path) -> None:
    with latfix.record(tmp_path, route="outer"):
        with latfix.record(tmp_path, route="inner"), latfix.span("db"):
            pass
        time.sleep(0.01)
    table = _table(tmp_path)
    outer, inner = (table.routes.index(name) for name in ("outer", "inner"))
    assert table.route is not None
    assert (table.parts["db"][table.route == inner] > 0).all()
    assert (table.parts["db"][table.route == outer] == 0).all()


def test_a_span_whose_name_is_no_text_does_not_end_the_record(tmp_path: Path) -> None:
    with latfix.record(tmp_path), latfix.span(("db", 1)):  # type: ignore[arg-type]
        pass
    assert set(_table(tmp_path).parts) >= {"('db', 1)"}


def test_blocks_of_generators_end_in_any_order_and_in_any_context(tmp_path: Path) -> None:
    shared = latfix.record(tmp_path, route="shared")

    def stream(block: latfix.record) -> Iterator[int]:
        with block, latfix.span("db"):
            yield 1

    early, late = stream(latfix.record(tmp_path, route="early")), stream(latfix.record(tmp_path, route="late"))
    elsewhere = stream(shared)
    assert [next(early), next(late)] == [1, 1]
    assert contextvars.copy_context().run(next, elsewhere) == 1
    assert list(early) == []
    time.sleep(0.02)
    assert list(late) == []
    assert contextvars.copy_context().run(list, elsewhere) == []
    assert collected.get() is None, "spans outside requests would accumulate"
    table = _table(tmp_path)
    took = dict(zip((table.routes[k] for k in table.route), table.latency_ns, strict=True))  # type: ignore[union-attr]
    assert took.keys() == {"early", "late", "shared"}
    assert took["early"] < took["late"]
    assert took["late"] > 0.02e9


@pytest.mark.parametrize("features", [lambda: 1 / 0, lambda: 3, {"n": 10**400}, {(1,): 2}, {"n": object()}])
def test_invalid_features_lose_neither_answers_nor_rows(tmp_path: Path, features: Any) -> None:
    @latfix.record(tmp_path, features=features)
    def answer() -> int:
        return 42

    assert [answer(), answer()] == [42, 42]
    assert len(_table(tmp_path)) == 2
    assert {
        json.loads(line)["in_flight"] for file in tmp_path.iterdir() for line in file.read_text().splitlines()
    } == {1}


def test_the_thread_starts_with_the_first_row(tmp_path: Path) -> None:
    before = threading.active_count()
    work = latfix.record(tmp_path)(_nothing)
    assert threading.active_count() == before
    work()
    assert threading.active_count() == before + 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda folder: latfix.record(folder)(generator), "generator"),
        (lambda _: latfix.record(print), "expected the folder"),  # type: ignore[arg-type]
        (lambda folder: latfix.record(folder, most_mb=0), "most_mb"),
        (lambda folder: latfix.record(folder, rows_per_s=True), "rows_per_s"),
        (lambda folder: latfix.record(folder, route=3), "found route"),  # type: ignore[arg-type]
        (lambda _: latfix.record("/proc/latfix"), "cannot record there"),
    ],
)
def test_invalid_arguments_are_refused_at_once(tmp_path: Path, given: Callable[[Path], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        given(tmp_path / "log")


def generator() -> Any:
    """Returns before its work is done."""
    yield 1


def test_a_forked_process_records_for_itself(tmp_path: Path) -> None:
    work = latfix.record(tmp_path)(_nothing)
    work()
    flush()
    with latfix.record(tmp_path):  # this request belongs to the parent
        child = os.fork()
    if not child:
        work()
        flush()
        opened = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
        os._exit(sum(name.startswith(str(tmp_path)) for name in opened) - 1)  # its own segment, not the parent's
    assert os.waitpid(child, 0)[1] == 0
    assert len(_table(tmp_path)) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_a_forked_process_reads_its_own_counters() -> None:
    """The thread that forks goes on in the child, with the parent's files."""
    child = os.fork()
    if not child:
        time.sleep(0.05)  # until the parent waits
        before = int(OF_THREAD.read().split()[0])
        _burn(30)
        time.sleep(0)  # the kernel counts at a switch or a tick
        os._exit(0 if int(OF_THREAD.read().split()[0]) > before else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_unfinished_line_is_not_an_error(tmp_path: Path) -> None:
    work = latfix.record(tmp_path)(_nothing)
    for _ in range(3):
        work()
    flush()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    table = service_log.read([file])
    assert len(table) == 2
    assert not [note for note in table.notes if "left out" in note]


def test_a_sample_is_diagnosed_with_its_weights(tmp_path: Path) -> None:
    work = latfix.record(tmp_path, rows_per_s=10)(_nothing)
    for _ in range(5000):
        work()
    result = _diagnosis(tmp_path)
    assert result.source is not None
    assert result.requests["ok"] == result.source.read["requests"] == 5000
    assert result.source.read["rows"] < 1000
    assert any("sample" in note for note in result.notes)
    assert "queue" not in result.stages_ms


@pytest.mark.slow
def test_a_slow_dependency_is_named_by_its_declared_name(tmp_path: Path) -> None:
    @latfix.record(tmp_path / "plain")
    def plain(k: int) -> None:
        _burn(2)
        time.sleep(0.06 if k % 8 == 0 else 0.001)

    @latfix.record(tmp_path / "declared")
    def declared(k: int) -> None:
        _burn(2)
        with latfix.span("feature_store"):
            time.sleep(0.06 if k % 8 == 0 else 0.001)

    for k in range(120):
        plain(k)
        declared(k)
    assert _diagnosis(tmp_path / "plain").verdict == "external.dependency"
    assert _diagnosis(tmp_path / "declared").verdict == "dependency.feature_store"


@pytest.mark.slow
def test_collections_are_named(tmp_path: Path) -> None:
    kept = [[k] for k in range(200_000)]

    @latfix.record(tmp_path)
    def handle(k: int) -> None:
        _burn(2)
        if k % 8 == 0:
            gc.collect()

    for k in range(120):
        handle(k)
        time.sleep(0.002)
    del kept
    result = _diagnosis(tmp_path)
    assert "python.gc" in [cause.cause for cause in result.causes if cause.named]
    assert result.verdict in ("python.gc", "host.contention")  # the latter on a busy machine


@pytest.mark.slow
def test_a_wait_for_a_lock_is_not_a_dependency(tmp_path: Path) -> None:
    one_at_a_time = threading.Lock()

    @latfix.record(tmp_path)
    def handle() -> None:
        with one_at_a_time:
            time.sleep(0.003)

    with ThreadPoolExecutor(40) as pool:
        for k in range(200):
            for _ in range(30 if k % 40 == 20 else 1):
                pool.submit(handle)
            time.sleep(0.012)
    result = _diagnosis(tmp_path)
    outside = sum(cause.tail_share for cause in result.causes if cause.cause == "external.dependency")
    assert outside < 0.25


def test_a_killed_process_loses_only_the_last_rows(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        work = latfix.record(tmp_path)(_nap)
        while True:
            work()
    while not any(file.read_bytes().endswith(b"\n") for file in tmp_path.glob("*.jsonl")):
        time.sleep(0.01)
    while_it_runs = len(_table(tmp_path))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert while_it_runs > 0
    assert len(_table(tmp_path)) >= while_it_runs
