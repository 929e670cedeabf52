"""CPU time of other processes, from files in the kernel's format."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any

from latfix.profilers.probes.neighbor_watch import NeighborWatch

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
SECOND = 1_000_000_000


def process(proc: Path, pid: int, name: str, ticks: int, *, parent: int = 1, born: int = 5) -> None:
    """A process that has spent ``ticks``, half of them in the kernel."""
    (proc / str(pid)).mkdir(exist_ok=True)
    zeros = " ".join("0" * 7)
    times = f"{ticks - ticks // 2} {ticks // 2} 0 0 20 0 1 0 {born}"
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) R {parent} 1 1 {zeros} {times} 0 0\n")
    (proc / str(pid) / "comm").write_text(f"{name}\n")


def watching(proc: Path, own: Collection[int] = (), **options: Any) -> NeighborWatch:
    """A watch with a clock that ticks a second per reading, after its first reading."""
    clock = count(SECOND, SECOND)
    watch = NeighborWatch(own, proc=proc, clock=lambda: next(clock), **options)
    watch.look()
    return watch


def test_cpu_time_is_attributed_to_processes(tmp_path: Path) -> None:
    # GIVEN a busy process with a tricky name, an idle shell, the service with a child, and this process
    process(tmp_path, 7, "a) R 1 (b", 1000)
    process(tmp_path, 8, "sh", 3)
    process(tmp_path, 9, "python3", 50)
    process(tmp_path, 10, "loader", 50, parent=9)
    process(tmp_path, os.getpid(), "latfix", 10)
    watch = watching(tmp_path, {9})
    # WHEN all but the shell compute for a second
    for pid, name, ticks in ((7, "a) R 1 (b", 1090), (9, "python3", 140), (os.getpid(), "latfix", 13)):
        process(tmp_path, pid, name, ticks)
    watch.look()
    # THEN only the busy process is a neighbor
    assert watch.samples == [
        (SECOND, "other.all.spent_ns", 0.0),
        (SECOND, "latfix.spent_ns", 0.0),
        (2 * SECOND, "other.all.spent_ns", 90.0 * TICK_NS),
        (2 * SECOND, "latfix.spent_ns", 3.0 * TICK_NS),
        (2 * SECOND, "other.7.a) R 1 (b.spent_ns", 90.0 * TICK_NS),
    ]


def test_a_process_with_long_turns_is_kept_though_it_uses_little(tmp_path: Path) -> None:
    for pid, turns in ((7, 20), (8, 400)):
        process(tmp_path, pid, f"agent{pid}", 3)
        (tmp_path / str(pid) / "schedstat").write_text(f"{40 * 10**6} 123 {turns}\n")
    watch = watching(tmp_path)
    for pid in (7, 8):
        process(tmp_path, pid, f"agent{pid}", 4)
    watch.look()
    assert watch.samples[4:] == [
        (2 * SECOND, "other.7.agent7.spent_ns", 1.0 * TICK_NS),
        (2 * SECOND, "other.7.agent7.turn_ns", 2e6),
    ]


def test_a_reused_number_and_a_new_process_count_from_zero(tmp_path: Path) -> None:
    process(tmp_path, 7, "old", 5000, born=5)
    watch = watching(tmp_path)
    process(tmp_path, 7, "new", 40, born=6)
    process(tmp_path, 11, "passer-by", 20)
    watch.look()
    assert [value for _, _, value in watch.samples] == [0.0, 0.0, 60.0 * TICK_NS, 0.0, 40.0 * TICK_NS, 20.0 * TICK_NS]


def test_names_have_no_control_characters_and_a_torn_line_is_kept_apart(tmp_path: Path) -> None:
    process(tmp_path, 7, "x", 0)
    watch = watching(tmp_path)
    process(tmp_path, 7, "\x1b[31mred", 80)
    watch.look()
    run = tmp_path / "run"
    (run / "segments").mkdir(parents=True)
    (run / "segments" / "samples.jsonl").write_text('[1, "host.st')
    watch.write(run, SECOND)
    lines = (run / "segments" / "samples.jsonl").read_text().splitlines()
    assert lines[0] == '[1, "host.st'
    assert json.loads(lines[-1]) == [SECOND, "other.7.?[31mred.spent_ns", 80.0 * TICK_NS]


def test_without_proc_nothing_is_recorded(tmp_path: Path) -> None:
    watch = watching(tmp_path / "none")
    watch.look()
    assert watch.samples == []


def test_what_latfix_starts_to_replay_is_latfix_and_what_this_process_starts_is_not(tmp_path: Path) -> None:
    # GIVEN the replaying process 7 with a child, and a service that this process started
    def spend(ticks: int) -> None:
        process(tmp_path, 7, "python", ticks)
        process(tmp_path, 8, "python", ticks, parent=7)
        process(tmp_path, 9, "service", ticks, parent=os.getpid())

    process(tmp_path, os.getpid(), "latfix", 10)
    spend(0)
    watch = watching(tmp_path, latfix={7})
    spend(40)
    watch.look()
    assert watch.samples[2:] == [
        (2 * SECOND, "other.all.spent_ns", 40.0 * TICK_NS),
        (2 * SECOND, "latfix.spent_ns", 80.0 * TICK_NS),
        (2 * SECOND, "other.9.service.spent_ns", 40.0 * TICK_NS),
    ]
