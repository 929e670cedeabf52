"""A service that a command starts, with real processes."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from latfix.errors import InputError, RunnerError
from latfix.runners.gate.served_arm import ServedArm
from latfix.runners.http_target.http_session import HttpReplay
from latfix.traffic.schedule import Traffic

#: A service with a child in a session of its own, whose child outlives it, and a number for each.
FORKS = """
import os, sys, time
def note():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
note()
time.sleep(600)
"""


def _nobody() -> object:
    raise InputError("nothing listens")


def _never(_: Traffic, __: int) -> HttpReplay:
    raise AssertionError("not replayed")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_no_process_that_the_command_started_is_left(tmp_path: Path) -> None:
    script, numbers = tmp_path / "service.py", tmp_path / "numbers"
    script.write_text(FORKS)
    warm = Traffic.plain(np.zeros(1, np.int64))
    command = f"{sys.executable} {script} {numbers}; true"  # the shell waits for it
    arm = ServedArm("base", command, tmp_path / "base.log", warm, _nobody, _never, shared=False)
    arm.launch()
    until = time.monotonic() + 60
    while not numbers.exists() or len(numbers.read_text().splitlines()) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    arm.close()
    for number in map(int, numbers.read_text().split()):
        with suppress(FileNotFoundError):  # an ended process that nobody waited for has no command line
            assert not Path(f"/proc/{number}/cmdline").read_bytes(), f"process {number} was left"


def test_a_command_that_does_not_answer_has_its_share_of_the_budget(tmp_path: Path) -> None:
    warm = Traffic.plain(np.zeros(1, np.int64))
    arm = ServedArm("base", "sleep 600", tmp_path / "base.log", warm, _nobody, _never, patience_s=lambda: 0.2)
    with pytest.raises(RunnerError, match=r"did not start within 0 s \(a larger --budget waits longer\): nothing"):
        arm.running()
