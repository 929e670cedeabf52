"""Folders from a stranger, as CI artifacts of a pull request are: no command executes what it reads there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import latfix
from latfix.config.plan import read_plan
from latfix.errors import InputError
from latfix.profilers.service_log.recorder import flush
from latfix.runners.optimize.journal import Journal
from latfix.runners.selftest.faults.fault_log import LOG_FILE
from latfix.runners.selftest.run_case import CASE_FILE, RECORD
from tests.cli.conftest import MS, batches_of, refused, serve_one_by_one, write_run
from tests.conftest import Canary, cli, write_workload

PARQUET = ("requests", "batches", "events", "samples", "traffic")
#: Modules that a program finds before its own where it looks into the folder that it is called in.
MODULES = (
    "adapter",
    "conftest",
    "json",
    "latfix",
    "matplotlib",
    "numpy",
    "pandas",
    "sitecustomize",
    "torch",
    "workload",
)
PLAN = """
schema = "latfix.plan/1"
workload = "w"
[[fix]]
id = "memory.allocator"
reason = "$(mkdir {canary}) `mkdir {canary}`"
[fix.settings]
env = {{ GLIBC_TUNABLES = "$(mkdir {canary}); `mkdir {canary}`" }}
"""
MAIN = "import json, sys; from latfix.cli.app import main; print([main(each) for each in json.load(sys.stdin)])"


def _write_artifact(folder: Path, bird: Canary) -> None:
    """Valid runs, next to files that could be executed by accident."""
    rows, _ = serve_one_by_one([5 * MS] * 40 + [20 * MS] * 5)
    code = f"__import__('os').mkdir({str(bird.file)!r})"
    hostile: dict[str, Any] = {
        "entry": "adapter:Plain",
        "workload_folder": str(folder),
        "workload": f"{{{{{code}}}}}",
    }
    for name, finished in (("run", True), ("killed", False)):
        write_run(
            folder / name, rows, batches=batches_of(rows), finished=finished, **hostile, traffic_arguments=[code]
        )
        (folder / name / "outputs.npz").write_bytes(bird.pickle)
    run = pq.read_table(folder / "run" / "requests.parquet")
    kind = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": bird.pickle}
    fields = [each.with_metadata(kind) if each.name == "latency_ns" else each for each in run.schema]
    pq.write_table(run.cast(pa.schema(fields)), folder / "run" / "requests.parquet")
    for place in (folder, folder / "run"):
        for name in MODULES:
            (place / f"{name}.py").write_text(code)
        (place / "hook.pth").write_text(f"import os; {code}")
        (place / "matplotlibrc").write_text("backend: module://workload\n")
    subprocess.run(["git", "init", "-q", folder], check=True)
    with (folder / ".git" / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = mkdir {bird.file}\n\tpager = mkdir {bird.file}\n")
    (folder / "plan.toml").write_text(PLAN.format(canary=bird.file))
    (folder / "requests.jsonl").write_text(
        "".join(json.dumps({"arrival_s": k, "id": f"{code}{k}", code: 1}) + "\n" for k in range(9))
    )
    (folder / "memory.pickle").write_bytes(bird.pickle)
    (folder / "optimize").mkdir()
    np.savez(folder / "optimize" / "outputs.npz", scored=np.frombuffer(bird.pickle, dtype=np.uint8))
    journal: dict[str, Any] = {
        "settings": {},
        "traffic_sha256": "",
        "stretch_s": 1,
        "seed": 0,
        "accuracy": 1,
        "accuracy_kind": code,
    }
    Journal(**journal, load_s=1, accuracy_s=1).write(folder / "optimize")
    with zipfile.ZipFile(folder / "archive.pt", "w") as archive:
        archive.writestr("archive/data.pkl", bird.pickle)
    _write_kept_case(folder / "kept" / "quiet", rows, hostile)
    _write_kept_case(folder / "pickled" / "quiet", rows, hostile)
    (folder / "pickled" / "quiet" / CASE_FILE).write_bytes(bird.pickle)
    (folder / "log.csv").write_text("time,latency_ms,path\n" + f"1700000000,5,{code}\n" * 9)
    _write_service_log(folder / "live", code)
    shutil.copytree(folder / "live", folder / "spoiled")
    for file in (folder / "spoiled").iterdir():
        file.write_bytes(bird.pickle)
    np.save(folder / "objects.npy", np.array([bird], dtype=object), allow_pickle=True)


def _write_kept_case(folder: Path, rows: Any, hostile: dict[str, Any]) -> None:
    """A case as ``latfix selftest --out`` keeps it."""
    write_run(folder / RECORD, rows, batches=batches_of(rows), t0_ns=1, **hostile)
    case = {"recipes": ["quiet_low"], "group": "quiet", "intensity": "small", "seed": 1, "seconds": 1.0}
    (folder / CASE_FILE).write_text(json.dumps({**case, "blocks": 1, "typical_ms": 5.0}))
    (folder / LOG_FILE).touch()


def _write_service_log(folder: Path, code: str) -> None:
    """What ``latfix.record`` writes in a user's service."""

    def answer() -> None:
        """A request that takes no time."""

    work = latfix.record(folder, route=code)(answer)
    for _ in range(50):
        work()
    flush()


#: What is called in the stranger's folder, and the code that it ends with.
CALLS: list[tuple[int, str]] = [
    (0, "report killed --slowest 2 --out ../pages"),
    (0, "compare run killed"),
    (0, "export-plan plan.toml --for env"),
    (0, "export run --to csv --out ../exported.csv"),
    (0, "traffic inspect requests.jsonl"),
    (0, "traffic convert requests.jsonl ../converted.csv"),
    (0, "traffic import log.csv ../imported.jsonl --time time --latency latency_ms"),
    (0, "watch live --updates 1"),
    (2, "watch spoiled --updates 1"),
    (0, "selftest --rescore kept"),
    (2, "traffic import memory.pickle ../imported-2.jsonl"),
    (2, "watch memory.pickle --updates 1"),
    (2, "selftest --rescore pickled"),
    (2, "traffic inspect memory.pickle"),
    (2, "diagnose memory.pickle"),
    (2, "diagnose archive.pt"),
    (2, "diagnose objects.npy"),
    (2, "diagnose archive.pt --traffic requests.jsonl"),
    (2, "fragmentation memory.pickle"),
    (2, "report memory.pickle"),
    (2, "report optimize"),
    (2, "history --history memory.pickle"),
    (2, "gate run run --gate p99<=baseline*1.1"),
    (2, "gate plan.toml plan.toml --gate p99<=baseline*1.1 --workload run"),
    (2, "diagnose ../w --plan memory.pickle"),
    (2, "diagnose ../w --baseline memory.pickle --gate p99<=baseline*1.1"),
    (2, "optimize ../w --resume optimize"),
]


def test_no_command_executes_what_a_strangers_folder_holds(tmp_path: Path, canary: Canary) -> None:
    write_workload(tmp_path / "w")
    _write_artifact(tmp_path / "artifact", canary)
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "main.py").write_text(MAIN)
    called = subprocess.run(
        [sys.executable, tmp_path / "program" / "main.py"],
        input=json.dumps([words.split() for _, words in CALLS]),
        cwd=tmp_path / "artifact",
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "LATFIX_HISTORY": "off"},
    )
    assert json.loads(called.stdout.splitlines()[-1]) == [code for code, _ in CALLS], called.stderr
    lines = called.stderr.splitlines()
    assert sum(line.startswith("latfix: ") for line in lines) == sum(code == 2 for code, _ in CALLS), called.stderr
    assert not any("Traceback" in line for line in lines)
    assert any("optimize/outputs.npz: found " in line and "pickles" in line for line in lines)


@pytest.mark.parametrize("command", ["report", "compare"])
@pytest.mark.parametrize(
    ("finished", "file"),
    [*((True, f"{name}.parquet") for name in PARQUET), *((each, "run.json") for each in (True, False))],
)
def test_a_pickle_in_the_place_of_a_file(
    runs: dict[bool, Path], canary: Canary, command: str, finished: bool, file: str
) -> None:
    folder = runs[finished]
    (folder / file).write_bytes(canary.pickle)
    refused(cli(command, *[folder] * (2 if command == "compare" else 1)), str(folder / file))


@pytest.mark.parametrize("name", ["events.jsonl", "samples.jsonl", "requests.bin", "batches.bin"])
def test_a_pickle_in_the_place_of_a_segment(killed: Path, canary: Canary, name: str) -> None:
    """Of lines and rows that are torn as much is read as is whole: none of it."""
    (killed / "segments" / name).write_bytes(canary.pickle)
    assert cli("report", killed, "--json", "-")[0] in (0, 2)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LD_PRELOAD", "/tmp/libjemalloc.so.2"),
        ("LD_AUDIT", "/tmp/a.so"),
        ("PYTHONPATH", "/tmp"),
        ("BASH_ENV", "a.sh"),
    ],
)
def test_a_plan_cannot_have_a_process_load_code(tmp_path: Path, variable: str, value: str) -> None:
    """Wherever a plan is applied, only variables that fixes set act, and of libraries only allocators found here."""
    folder = write_workload(tmp_path / "w")
    plan = tmp_path / "plan.toml"
    text = PLAN.format(canary=tmp_path / "canary")
    plan.write_text(text.replace("{ GLIBC_TUNABLES", f'{{ {variable} = "{value}", GLIBC_TUNABLES'))
    gate = ("--gate", "p99<=baseline*1.1", "--workload", folder)
    for arguments in (
        ("diagnose", folder, "--plan", plan),
        ("try", folder, "--plan", plan),
        ("gate", plan, plan, *gate),
    ):
        refused(cli(*arguments), f"plan.toml:8: found {variable} = {value!r} in env; expected ")
    launched = [sys.executable, "-m", "latfix.runners.launch", str(plan), "touch", str(tmp_path / "launched")]
    done = subprocess.run(launched, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and variable in done.stderr
    with pytest.raises(InputError, match=f"found {variable} = "):
        latfix.load_runner(folder, plan=read_plan(plan), warm=False)
    assert not (tmp_path / "launched").exists()
