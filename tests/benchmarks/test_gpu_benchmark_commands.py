"""Commands of the benchmarks for a GPU: limits of time, what is left of a command, and results item by item."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import commands
from benchmarks.gpu.commands import TIMED_OUT, run
from benchmarks.gpu.findings import Findings, lacks, no_time

_SLEEPS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(120)"
#: Starts one that sleeps, in a session of its own where that is asked for, and says so when it is under way.
_STARTS = """
import pathlib, subprocess, sys, time
file = pathlib.Path(sys.argv[1])
subprocess.Popen([sys.executable, "-c", sys.argv[3], str(file)], start_new_session=sys.argv[2] == "apart")
while not (file.exists() and file.read_text()):
    time.sleep(0.01)
print("it is under way")
"""


def _starting(file: Path, where: str, then: str) -> list[str]:
    return [sys.executable, "-c", _STARTS + then, str(file), where, _SLEEPS]


def _is_gone(pid: int) -> bool:
    """It has ended, whether or not anyone has taken note of it."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(200):
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_a_command_is_run_in_this_tree_and_says_how_it_ended() -> None:
    code = "import os, sys, latfix; print(os.getcwd(), latfix.__file__); print('and', file=sys.stderr); sys.exit(3)"
    ended = run([sys.executable, "-c", code], 30)
    assert ended.exit_code == 3 and not ended.stopped and ended.why == "ended with 3: and"
    first, second = ended.output.splitlines()
    assert first == f"{commands.ROOT} {commands.ROOT / 'latfix' / '__init__.py'}" and second == "and"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
@pytest.mark.parametrize("where", ["along", "apart"])
def test_a_stopped_command_takes_what_it_started_with_it_and_its_output_is_kept(tmp_path: Path, where: str) -> None:
    ended = run(_starting(tmp_path / "pid", where, "time.sleep(120)"), 3)
    assert ended.stopped and ended.exit_code == TIMED_OUT and ended.seconds < 30
    assert "it is under way" in ended.output
    assert _is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_a_command_that_ends_leaves_nobody_behind(tmp_path: Path) -> None:
    ended = run(_starting(tmp_path / "pid", "along", ""), 30)
    assert ended.exit_code == 0 and ended.seconds < 30
    assert _is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")
def test_an_interruption_ends_the_command_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait, file = subprocess.Popen.wait, tmp_path / "pid"

    def interrupted(*_: Any) -> int:
        monkeypatch.setattr(subprocess.Popen, "wait", wait)
        while not (file.exists() and file.read_text()):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", _SLEEPS, str(file)], 60)
    assert _is_gone(int(file.read_text()))


def test_what_is_printed_in_other_bytes_than_text_is_kept() -> None:
    ended = run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'\\xff\\xfe and more')"], 30)
    assert ended.output.endswith("and more")


def test_an_item_that_fails_costs_no_other(tmp_path: Path) -> None:
    found = Findings(tmp_path / "found.json")
    found.put("first", {"value": 1})
    found.attempt("second", lambda: dict[str, Any]()["nowhere"])
    assert found.attempt("third", lambda: {"value": 3}) == {"value": 3}
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["first"] == {"value": 1} and written["third"] == {"value": 3}
    assert written["second"]["failed"] == "KeyError: 'nowhere'" and "test_gpu" in written["second"]["trace"]


def test_items_are_on_disk_before_the_next_is_measured(tmp_path: Path) -> None:
    """A process that is killed in an item leaves those before it."""
    file = tmp_path / "found.json"
    code = (
        "import os, sys; from pathlib import Path; from benchmarks.gpu.findings import Findings; "
        "found = Findings(Path(sys.argv[1])); found.put('first', {'value': 1}); "
        "found.attempt('second', lambda: os.kill(os.getpid(), 9))"
    )
    assert run([sys.executable, "-c", code, str(file)], 30).exit_code == -9
    assert json.loads(file.read_text()) == {"first": {"value": 1}}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"value": 1}, ""),
        ({}, "nothing"),
        (None, "nothing"),
        ({"failed": "KeyError"}, "failed: KeyError"),
        (no_time(3, 20), "skipped, no time: 3 s were left, it needs 20 s at least"),
    ],
)
def test_a_result_that_holds_nothing_says_why(value: Any, said: str) -> None:
    assert lacks(value).startswith(said) and bool(lacks(value)) == bool(said)
