"""``benchmarks/gpu/run.py``: what fits into the time, what is said of the rest, and results of several calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import run as program
from benchmarks.gpu.commands import ROOT, TIMED_OUT, Ended
from benchmarks.gpu.judging import FAULTS
from benchmarks.gpu.parts import KINDS, LIMIT_S, PARTS, SAMPLE_LEAST_S, SAMPLES, chosen, seconds_for, together
from benchmarks.gpu.results import Results

Found = Mapping[str, Any]
Call = Callable[..., tuple[int, str]]

#: What looking for a device takes at most, about.
_AROUND_S = 30.0
_ABOUT = {"cuda": True, "machine": {"gpu": "Test 9000"}, "versions": {"torch": "9.9"}}
_DOCTOR = {"exit_code": 0, "findings": []}
_SAMPLE = {"exit_code": 0, "verdict": "improved", "steps": [{"status": "kept"}]}


class Machine:
    """In place of the processes that parts run in: what each finds, and how long it was given.

    :ivar takes_all: a part takes all the time that it is given, and not none.
    :ivar now: the time.
    """

    def __init__(self) -> None:
        self.takes_all, self.now = False, 1000.0
        self.found: dict[str, Found] = {"about": _ABOUT}
        self.exit_codes: dict[str, int] = {}
        self.given: dict[str, float] = {}

    def run(self, command: list[str], seconds: float, environment: Mapping[str, str]) -> Ended:
        _, _, module, part, file, _, _ = command
        assert module == "benchmarks.gpu.child" and "TMPDIR" in environment
        self.given[part] = seconds
        if self.takes_all and part != "about":
            self.now += seconds
        if part in self.found:
            Path(file).write_text(json.dumps(self.found[part]))
        code = self.exit_codes.get(part, 0)
        return Ended(exit_code=code, output="Traceback\nlast line", seconds=seconds, stopped=code == TIMED_OUT)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(program, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(program, "run", made.run)
    monkeypatch.setattr(program, "missing", lambda _: {})
    return made


@pytest.fixture
def call(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    def called(*arguments: str, left: float = LIMIT_S) -> tuple[int, str]:
        monkeypatch.setattr(program, "STARTED", machine.now - (LIMIT_S - left))
        monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), *arguments])
        code = program.main()
        return code, capsys.readouterr().out

    return called


def _file(folder: Path) -> dict[str, Any]:
    parts: dict[str, Any] = json.loads((folder / "gpu.json").read_text())["parts"]
    return parts


def test_parts_are_chosen_by_name_and_samples_one_by_one() -> None:
    assert chosen(None, None) == list(PARTS)
    assert [part.name for part in chosen(["tests", "doctor"], None)] == ["doctor", "tests"]
    assert [part.name for part in chosen(None, ["vision"])] == ["samples.vision"]
    assert [part.name for part in chosen(["doctor", "samples"], ["vision"])] == ["doctor", "samples.vision"]
    assert len(chosen(["samples"], None)) == len(SAMPLES)


def test_samples_share_what_is_left_as_long_as_it_is_of_use() -> None:
    first, *others = chosen(["samples"], None)
    assert seconds_for(first, others, LIMIT_S) == pytest.approx(LIMIT_S / 3)
    assert seconds_for(first, others, 2 * SAMPLE_LEAST_S + 1) == pytest.approx(SAMPLE_LEAST_S + 0.5)
    assert seconds_for(first, others, SAMPLE_LEAST_S - 1) == 0
    assert seconds_for(first, [], LIMIT_S) == LIMIT_S


def test_no_part_is_given_more_than_is_left() -> None:
    for part in PARTS:
        assert seconds_for(part, [], part.least) == part.least
        assert seconds_for(part, [], part.least - 1) == 0


def test_the_calls_that_the_documentation_names_are_all_parts_and_fit() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    named: list[str] = []
    for line in re.findall(r"^python benchmarks/gpu/run\.py(.*)$", text, flags=re.MULTILINE):
        only = re.search(r"--only ((?:[a-z]+ ?)+)", line)
        sample = re.search(r"--sample ([a-z]+)", line)
        if only is None and sample is None:
            continue
        parts = chosen(only[1].split() if only else None, [sample[1]] if sample else None)
        assert together(parts) + _AROUND_S < LIMIT_S, line
        named += [part.name for part in parts]
    assert sorted(named) == sorted(part.name for part in PARTS)


def test_a_call_adds_its_parts_to_those_of_others(machine: Machine, call: Call, tmp_path: Path) -> None:
    machine.found |= {"doctor": _DOCTOR, "samples.vision": _SAMPLE, "samples.assistant": _SAMPLE}
    assert call("--only", "doctor")[0] == 0
    machine.found["about"] = {**_ABOUT, "machine": {"gpu": "Test 9001"}}
    assert call("--sample", "vision")[0] == 0
    assert call("--sample", "assistant")[0] == 0
    parts = _file(tmp_path)
    assert set(parts) == {"doctor", "samples.vision", "samples.assistant"}
    assert parts["doctor"]["machine"] == {"gpu": "Test 9000"}
    assert parts["samples.vision"]["machine"] == {"gpu": "Test 9001"}
    assert all(part["versions"] == {"torch": "9.9"} and part["date"] for part in parts.values())
    assert parts["samples.vision"]["found"]["verdict"] == "improved" and parts["samples.vision"]["problems"] == []


def test_what_time_does_not_allow_is_said_and_is_not_passed(machine: Machine, call: Call, tmp_path: Path) -> None:
    machine.found |= {"doctor": _DOCTOR} | {f"samples.{name}": _SAMPLE for name in SAMPLES}
    machine.takes_all = True
    code, said = call("--only", "doctor", "samples", left=SAMPLE_LEAST_S + 40)
    assert code == 1 and set(machine.given) == {"about", "doctor", "samples.recommender"}
    assert "what comes last may be left out for time" in said
    assert "left out for time: samples.vision, samples.assistant; to be run in calls of their own:" in said
    for name in ("vision", "assistant"):
        assert f"samples.{name}: skipped: no time" in said
        assert f"python benchmarks/gpu/run.py --only samples --sample {name}" in said
        assert "skipped" in _file(tmp_path)[f"samples.{name}"]["found"]


def test_a_call_for_everything_keeps_to_its_limit(machine: Machine, call: Call) -> None:
    """Were each part to take what it may, the last are left out, and that is said."""
    machine.takes_all = True
    code, said = call()
    del machine.given["about"]
    assert code == 1 and sum(machine.given.values()) <= LIMIT_S
    left_out = [part.name for part in PARTS if part.name not in machine.given]
    assert left_out and f"left out for time: {', '.join(left_out)};" in said


def test_a_result_that_is_there_is_not_lost_to_a_call_without_time(
    machine: Machine, call: Call, tmp_path: Path
) -> None:
    machine.found["samples.vision"] = _SAMPLE
    assert call("--sample", "vision")[0] == 0
    code, said = call("--sample", "vision", left=20)
    assert code == 1 and "the file keeps what an earlier call found" in said
    assert _file(tmp_path)["samples.vision"]["found"]["verdict"] == "improved"
    machine.exit_codes["samples.vision"] = TIMED_OUT
    machine.found["samples.vision"] = {"exit_code": TIMED_OUT}
    assert call("--sample", "vision")[0] == 1
    assert _file(tmp_path)["samples.vision"]["found"]["verdict"] == "improved"


def test_a_worse_result_takes_the_place_of_a_better_one(machine: Machine, call: Call, tmp_path: Path) -> None:
    machine.found["doctor"] = _DOCTOR
    assert call("--only", "doctor")[0] == 0
    machine.found["doctor"] = {"exit_code": 4, "output": "latfix: no", "findings": []}
    assert call("--only", "doctor")[0] == 1
    assert _file(tmp_path)["doctor"]["problems"] == ["exit code 4: latfix: no"]


def test_what_a_stopped_part_had_found_is_kept(machine: Machine, call: Call, tmp_path: Path) -> None:
    machine.found["ceilings"] = {"rates": {"flops": {"fp32": 5e13}}}
    machine.exit_codes["ceilings"] = TIMED_OUT
    code, said = call("--only", "ceilings")
    assert code == 1 and "ceilings: NOT PASSED" in said and "stopped after" in said
    kept = _file(tmp_path)["ceilings"]
    assert kept["found"]["rates"] == {"flops": {"fp32": 5e13}} and not kept["complete"]


def test_a_part_that_dies_without_a_word_fails(machine: Machine, call: Call, tmp_path: Path) -> None:
    machine.exit_codes["stages"] = 1
    assert call("--only", "stages")[0] == 1
    found = _file(tmp_path)["stages"]["found"]
    assert found["failed"] == "its process ended with 1: last line" and found["process"].endswith("last line")


def test_what_cannot_be_told_is_said_of_a_part_that_passed(machine: Machine, call: Call) -> None:
    run = {"right": True, "evidence_missing": []}
    machine.found["faults"] = dict.fromkeys(FAULTS, run) | {
        "Neighbor": {**run, "right": None, "cannot_be_told": "no"}
    }
    code, said = call("--only", "faults")
    assert code == 0 and "s); Neighbor cannot be told: no" in said


def test_parts_run_without_a_package_that_others_need(
    machine: Machine, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.found["doctor"] = _DOCTOR
    monkeypatch.setattr(program, "missing", lambda _: {"pytest is not installed; pip install pytest": ["tests"]})
    code, said = call("--only", "doctor", "tests")
    assert code == 1 and "tests" not in machine.given
    assert "missing: pytest is not installed; pip install pytest (needed by tests)" in said
    assert "doctor: passed" in said and "tests: skipped: pytest is not installed" in said


def test_without_a_device_nothing_is_written(machine: Machine, call: Call, tmp_path: Path) -> None:
    machine.found["about"] = {**_ABOUT, "cuda": False}
    code, said = call()
    assert code == 3 and not (tmp_path / "gpu.json").exists()
    assert said.splitlines() == [f"{part.name}: not run, there is no CUDA device here" for part in PARTS]


def test_a_device_that_does_not_answer_is_said_for_each_part(machine: Machine, call: Call) -> None:
    del machine.found["about"]
    machine.exit_codes["about"] = 1
    code, said = call("--only", "doctor")
    assert code == 3
    assert said == "doctor: not run, failed: looking for a device ended with 1: last line\n"


@pytest.mark.parametrize("text", ["{", "[]", '{"parts": {}}'])
def test_a_file_that_is_none_of_these_is_left_alone(machine: Machine, call: Call, tmp_path: Path, text: str) -> None:
    (tmp_path / "gpu.json").write_text(text)
    code, said = call("--only", "doctor")
    assert code == 2 and "gpu.json: cannot be added to" in said and not machine.given
    assert (tmp_path / "gpu.json").read_text() == text


def test_results_are_found_again(tmp_path: Path) -> None:
    first = Results(tmp_path / "deeper" / "gpu.json")
    assert first.add("doctor", {"complete": True, "found": _DOCTOR})
    assert Results(first.file).parts == {"doctor": {"complete": True, "found": _DOCTOR}}


def test_on_a_machine_without_a_device_each_part_says_so_in_a_line(tmp_path: Path) -> None:
    """The program itself, from another folder."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu" / "run.py"), "--out", str(tmp_path / "out")],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == len(PARTS) and all("not run, there is no CUDA device here" in line for line in lines)
    assert not (tmp_path / "out" / "gpu.json").exists()
    assert set(KINDS) == {line.partition(":")[0].partition(".")[0] for line in lines}
