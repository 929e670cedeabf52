"""latfix from Python: the session of docs/api.md, frames of whole and of killed runs, what a notebook shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import latfix
from latfix.errors import InputError
from latfix.results import read_result
from latfix.results.comparison import Comparison
from latfix.results.optimization import Optimization
from tests.conftest import cli, write_workload
from tests.reports.conftest import make_document

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def notebook(service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with ``my_workload`` and a run of it in ``run``; replays are simulated."""
    write_workload(tmp_path / "my_workload", traffic=[{"arrival_s": k * 0.1, "tokens": k} for k in range(300)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("latfix.runners.replay.run_session.run", service.replay)
    assert cli("diagnose", "my_workload", "--out", "run")[0] == 0
    return tmp_path


def test_the_page_of_the_api_runs(notebook: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    session: dict[str, Any] = {}
    exec("\n".join(blocks), session)  # one notebook: each cell uses the names of those before
    assert isinstance(session["comparison"], Comparison)
    assert len(session["slow"]) == 10 and len(session["again"].requests) == 200
    assert session["again"].meta.settings.max_batch_size == 4
    assert (notebook / "smaller-batches" / "run.json").is_file()


@pytest.mark.usefixtures("notebook")
def test_frames_have_units_in_their_names() -> None:
    run = latfix.read_run("run")
    record = run.record
    assert run.requests["latency_ms"].to_numpy() == pytest.approx(record.requests["latency_ns"] / 1e6)  # type: ignore[union-attr]
    assert run.requests["arrival_s"].iloc[1] == pytest.approx(0.1) and run.requests["tokens"].tolist() == [
        *range(300)
    ]
    assert run.batches["open_s"].iloc[-1] > 29 and len(run.events) == len(run.samples) == 0
    for frame in (run.requests, run.batches, run.events, run.samples, run.causes):
        assert not [name for name in frame.columns if name.endswith("_ns")]
    ledger = latfix.diagnose(run).ledger
    assert run.causes["own_ms"].sum() == pytest.approx(ledger.own_ns.sum() / 1e6)


def test_causes_of_a_run_that_was_never_diagnosed(notebook: Path) -> None:
    written = latfix.read_run("run").causes
    (notebook / "run" / "causes.parquet").unlink()
    assert latfix.read_run("run").causes.equals(written)


def test_a_killed_run_is_read_and_not_changed(notebook: Path, service: Any) -> None:
    whole = latfix.read_run("run")
    killed = notebook / "killed"
    shutil.copytree(notebook / "run", killed)
    segments = killed / "segments"
    segments.mkdir()
    service._write(segments, whole.record.requests["arrival_ns"], seed=1)  # type: ignore[union-attr]
    for path in killed.glob("*.parquet"):
        if path.name != "traffic.parquet":
            path.unlink()
    before = sorted(path.name for path in killed.rglob("*"))
    run = latfix.read_run(killed)
    assert len(run.requests) == 300 and run.batches["size"].eq(1).all()
    assert sorted(path.name for path in killed.rglob("*")) == before


@pytest.mark.usefixtures("notebook")
def test_several_rounds_are_compared_in_pairs() -> None:
    rounds = [latfix.replay("my_workload", out=f"r{k}") for k in range(4)]
    compared = latfix.compare(rounds[:2], ["r2", rounds[3]])
    assert compared.paired and compared.rounds == 2
    assert compared.to_json() == latfix.compare(["r0", "r1"], ["r2", "r3"]).to_json()


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: latfix.diagnose("run", percentile=0), "a percentile from 1"),
        (lambda: latfix.compare([], []), "0 runs before and 0 after"),
        (lambda: latfix.compare("run", ["run", "run"]), "1 runs before and 2 after"),
        (lambda: read_result("run/samples.parquet"), "samples.parquet"),
    ],
    ids=["percentile", "nothing", "no pairs", "no result"],
)
def test_wrong_arguments_are_errors_of_latfix(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_folder_whose_name_is_not_utf8(notebook: Path) -> None:
    odd = (notebook / "run").rename(notebook / os.fsdecode(b"caf\xe9"))
    run = latfix.read_run(odd)
    assert len(run.requests) == len(run.batches) == 300 and run.causes["cause"].size and len(run.events.columns) == 7


@pytest.mark.usefixtures("notebook")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"max_batch": 4}, "max_batch"), ({"max_batch_size": 0}, "max_batch_size"), ({"limit": 0}, "--limit")],
)
def test_a_wrong_setting_is_refused_before_anything_runs(arguments: Any, message: str, service: Any) -> None:
    with pytest.raises(InputError, match=message):
        latfix.replay("my_workload", **arguments)
    assert service.runs == 1


@pytest.mark.usefixtures("notebook")
def test_a_notebook_shows_results_with_every_text_escaped() -> None:
    diagnosis = latfix.diagnose("run")
    evil = tuple(replace(cause, cause=HOSTILE, evidence=HOSTILE) for cause in diagnosis.causes)
    shown = replace(diagnosis, sentence=HOSTILE, notes=(HOSTILE,), causes=evil)._repr_html_()
    assert "<script" not in shown and "&lt;script&gt;" in shown and "<table>" in shown
    compared = replace(latfix.compare("run", "run"), notes=(HOSTILE,))._repr_html_()
    assert "<script" not in compared and "p99, ms" in compared


@pytest.mark.usefixtures("notebook")
def test_a_run_and_an_optimization_display_as_tables() -> None:
    run = latfix.read_run("run")
    shown = run._repr_html_()
    assert "<td>requests</td><td>300</td>" in shown and "<td>p99</td><td>" in shown
    evil = latfix.Run(replace(run.record, meta=run.meta.updated(workload=HOSTILE)))  # type: ignore[type-var]
    assert "<script" not in evil._repr_html_() and "&lt;script&gt;" in evil._repr_html_()

    for kind in ("ordinary", "hostile"):
        shown = Optimization.from_json(make_document(kind))._repr_html_()
        assert "<script" not in shown and shown.count("<table>") == 2
        assert "<td>p99, ms</td><td>412</td><td>98.0</td><td>x0.238</td>" in shown
        assert "gc.freeze" in shown and "transfer.pin" not in shown, "only what was tried"


def test_names_that_are_imported_later_are_listed() -> None:
    code = "import latfix; print(*dir(latfix))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"read_run", "diagnose", "compare", "replay", "Run", "Workload", "__version__"} <= set(listed)
    assert set(latfix.__all__) <= set(listed)


@pytest.mark.usefixtures("notebook")
def test_the_file_of_a_run_is_displayed_as_its_folder() -> None:
    code, out, _ = cli("report", "run/run.json")
    assert code == 0 and "p99" in out


def test_importing_latfix_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'pandas', 'pyarrow', 'typer', 'rich', 'scipy', 'latfix.notebook'}"
    code = f"import sys, latfix; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
