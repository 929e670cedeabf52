"""Variables that settings require, and the check that this process was started with them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

from latfix.config.plan import Plan, PlannedFix, write_plan
from latfix.errors import EXIT_INPUT
from latfix.runners.host import start_environment as environment
from latfix.runners.host.start_environment import (
    EnvironmentWarning,
    check_environment,
    command_line,
    environment_at_start,
    own_command,
    warn_unless_in_effect,
)
from latfix.settings import RunnerSettings

TUNABLES = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592"
ENV = {"OMP_WAIT_POLICY": "PASSIVE", "GLIBC_TUNABLES": TUNABLES}


@pytest.fixture
def started_with(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The pretended environment at process start; a test fills it."""
    start: dict[str, str] = {}
    monkeypatch.setattr(environment, "environment_at_start", lambda: start)
    monkeypatch.setattr(environment, "_warned", set())
    return start


def _settings(**env: str) -> RunnerSettings:
    return RunnerSettings(env=env)


def test_the_environment_at_process_start_is_in_effect(started_with: dict[str, str]) -> None:
    started_with.update(ENV, OTHER="x")
    found = check_environment(_settings(**ENV))
    assert {variable.name for variable in found} == set(ENV)
    assert all(variable.in_effect for variable in found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warn_unless_in_effect(_settings(**ENV)) == found


def test_a_different_variable_is_not_in_effect(started_with: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    started_with.update(OMP_WAIT_POLICY="ACTIVE")
    monkeypatch.setenv("LATFIX_TEST_LATE", "1")
    found = {v.name: v for v in check_environment(_settings(**ENV, LATFIX_TEST_LATE="1"))}

    assert not any(variable.in_effect for variable in found.values())
    assert found["OMP_WAIT_POLICY"].why_not == "the process started with 'ACTIVE'"
    assert found["GLIBC_TUNABLES"].why_not == "the process started without it"
    assert found["LATFIX_TEST_LATE"].why_not == "it was set after the process had started"


def test_tunables_of_others_stay(started_with: dict[str, str]) -> None:
    started_with["GLIBC_TUNABLES"] = f"glibc.malloc.perturb=7:{TUNABLES}"
    (variable,) = check_environment(_settings(GLIBC_TUNABLES=TUNABLES))
    assert variable.in_effect

    started_with["GLIBC_TUNABLES"] = "glibc.malloc.perturb=7"
    (variable,) = check_environment(_settings(GLIBC_TUNABLES=TUNABLES))
    assert not variable.in_effect and variable.wanted == f"glibc.malloc.perturb=7:{TUNABLES}"


def test_settings_that_imply_variables_are_looked_at_too(started_with: dict[str, str]) -> None:
    started_with.clear()
    assert "GLIBC_TUNABLES" in {v.name for v in check_environment(RunnerSettings(prefault_mb=16)) if not v.in_effect}
    assert check_environment(RunnerSettings()) == []


def test_a_library_that_was_not_loaded_is_not_in_effect(started_with: dict[str, str]) -> None:
    started_with["LD_PRELOAD"] = "/nowhere/libjemalloc.so.2"
    (variable,) = check_environment(_settings(LD_PRELOAD="/nowhere/libjemalloc.so.2"))
    assert "is not loaded" in variable.why_not

    loaded = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    started_with["LD_PRELOAD"] = loaded
    (variable,) = check_environment(_settings(LD_PRELOAD=loaded))
    assert variable.in_effect


def test_blanks_between_libraries_are_colons(started_with: dict[str, str]) -> None:
    lines = Path("/proc/self/maps").read_text().splitlines()
    first, second, *_ = sorted({line.split()[-1] for line in lines if ".so" in line})
    started_with["LD_PRELOAD"] = f"{first}  {second}"
    for wanted in (f"{first}:{second}", f"{first} {second}", first):
        (variable,) = check_environment(_settings(LD_PRELOAD=wanted))
        assert variable.in_effect, variable.why_not
    (variable,) = check_environment(_settings(LD_PRELOAD=second))
    assert not variable.in_effect, "the first of two allocators counts"


def test_the_warning_comes_once_with_the_command(
    started_with: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/uvicorn", "service:app"])
    monkeypatch.setattr(sys, "orig_argv", ["/bin/python", "/bin/uvicorn", "service:app"])
    started_with.clear()

    with pytest.warns(EnvironmentWarning) as caught:
        warn_unless_in_effect(_settings(A="1", B="two words"))
    (line,) = [str(warning.message).partition("start the service with: ")[2] for warning in caught]
    assert shlex.split(line) == ["env", "A=1", "B=two words", "/bin/python", "/bin/uvicorn", "service:app"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_unless_in_effect(_settings(A="1", B="two words"))
    with pytest.warns(EnvironmentWarning, match="A=2"):
        warn_unless_in_effect(_settings(A="2"))


GUNICORN = ["/bin/python", "/bin/gunicorn", "-c", "conf.py", "service:app"]
FORKED = ["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"]


@pytest.mark.parametrize(
    ("argv", "orig", "command"),
    [
        (["-c"], ["python", "-c", "import x"], ["COMMAND"]),  # cannot be started again from a shell
        ([""], ["python"], ["COMMAND"]),
        (["service.py"], FORKED, ["COMMAND"]),
        (GUNICORN[1:], GUNICORN, GUNICORN),  # the program's own option, not Python's
    ],
)
def test_the_command_that_started_this_program(
    argv: list[str], orig: list[str], command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig)
    assert own_command() == command


def test_the_environment_at_start_ignores_later_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LATFIX_TEST_LATE", "1")
    found = environment_at_start()
    assert "LATFIX_TEST_LATE" not in found and found["PATH"]
    monkeypatch.setattr(environment, "_AT_START", tmp_path / "environ")
    (tmp_path / "environ").write_bytes(b"gunicorn: worker [service=app]\0\0\0")
    assert environment_at_start() is os.environ, "a process title overwrote it: the current environment counts"
    path = f"PATH={os.environ['PATH']}"
    apart = "GLIBC_TUNABLES=glibc.malloc.mmap_max=0\0glibc.malloc.top_pad=6"  # as split by the C library
    (tmp_path / "environ").write_text(f"{path}\0{apart}\0B=glibc.x=1\0")
    together = {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.top_pad=6", "B": "glibc.x=1"}
    assert environment_at_start() == {"PATH": os.environ["PATH"], **together}


def _launch(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "latfix.runners.launch", *(str(argument) for argument in arguments)]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    fixes = (
        PlannedFix(id="host.threads", settings={"env": {"OMP_WAIT_POLICY": "ACTIVE"}}),
        PlannedFix(id="memory.allocator", settings={"env": ENV}),
    )
    write_plan(Plan(workload="w", fixes=fixes), path)
    return path


CHECK = """
import sys
from latfix.config.plan import read_plan
from latfix.runners.host.start_environment import check_environment
from latfix.settings import RunnerSettings
settings = RunnerSettings().with_overrides(read_plan(__import__("pathlib").Path(sys.argv[1])).settings())
print([(v.name, v.why_not) for v in check_environment(settings)])
assert "torch" not in sys.modules
sys.exit(7)
"""


def test_a_command_is_launched_with_the_environment_and_in_place(plan: Path) -> None:
    done = _launch(plan, sys.executable, "-c", CHECK, plan)
    assert done.returncode == 7, done.stderr
    assert done.stdout.strip() == str([(name, "") for name in ENV])
    done = _launch(plan.parent, "--", sys.executable, "-c", CHECK, plan, GLIBC_TUNABLES="glibc.malloc.perturb=3")
    assert done.returncode == 7, done.stderr


def test_a_command_is_launched_without_the_fixes_being_imported() -> None:
    code = "import sys; from latfix.runners import launch; sys.exit('latfix.runners.fixes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_a_command_the_line_is_printed(plan: Path) -> None:
    done = _launch(plan)
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout) == ["env", *(f"{name}={value}" for name, value in ENV.items()), "COMMAND"]
    assert command_line({"A": "b c"}, ["x"]) == "env A='b c' x"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "usage:"),
        (["/nowhere/plan.toml"], "latfix: /nowhere/plan.toml: found no such file; expected a plan"),
        (["PLAN", "/nowhere/uvicorn"], "latfix: /nowhere/uvicorn: cannot be started (No such file or directory)"),
    ],
)
def test_a_command_that_cannot_be_launched_is_one_line(plan: Path, arguments: list[str], expected: str) -> None:
    done = _launch(*(plan if argument == "PLAN" else argument for argument in arguments))
    assert done.returncode == EXIT_INPUT
    assert done.stderr.startswith(expected) and len(done.stderr.splitlines()) == 1
