"""``latfix report`` and ``latfix compare`` on folders that are no runs, or are damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.run_record.schema import REQUEST_DTYPE
from latfix.stages import STAGES
from tests.cli.conftest import Cli, batches_of, refused, write_run

N = 60


def _write(folder: Path, *, finished: bool) -> Path:
    rows = np.zeros(N, dtype=REQUEST_DTYPE)
    rows["index"] = rows["batch_id"] = np.arange(N)
    rows["arrival_ns"] = np.arange(N) * 10_000_000
    for k, stage in enumerate(STAGES):
        rows[f"{stage}_ns"] = 10_000 * (k + 1)
    rows["compute_ns"] += np.random.default_rng(0).integers(0, 5_000_000, N)
    rows["latency_ns"] = np.sum([rows[f"{stage}_ns"] for stage in STAGES], axis=0)
    batches = batches_of(rows)
    batches["free_ns"][1:] = batches["finish_end_ns"][:-1]
    events = [[10, 5, "gc", 1, -1, -1, {"generation": 2, "collected": 3}]]
    samples = [[20, "process.rss_bytes", 1.5]]
    return write_run(folder, rows, batches=batches, events=events, samples=samples, finished=finished)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    base = tmp_path_factory.mktemp("runs")
    return {finished: _write(base / str(finished), finished=finished) for finished in (True, False)}


@pytest.fixture
def runs(originals: dict[bool, Path], tmp_path: Path) -> dict[bool, Path]:
    return {finished: Path(shutil.copytree(path, tmp_path / path.name)) for finished, path in originals.items()}


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_reported_whatever_its_state(runs: dict[bool, Path], cli: Cli, finished: bool) -> None:
    code, out, err = cli("report", runs[finished], "--json", "-")
    assert code == 0, err
    document = json.loads(out)
    assert document["partial"] is not finished
    assert document["requests"]["ok"] == N
    assert (runs[finished] / "report.html").read_text().rstrip().endswith("</html>")


def test_out_leaves_the_run_as_it_was(runs: dict[bool, Path], cli: Cli, tmp_path: Path) -> None:
    before = {path.name for path in runs[True].iterdir()}
    assert cli("report", runs[True], "--out", tmp_path / "out")[0] == 0
    assert {path.name for path in runs[True].iterdir()} == before
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"diagnosis.json", "causes.parquet", "report.html"}


def test_pictures_are_files_that_need_no_page(runs: dict[bool, Path], cli: Cli, tmp_path: Path) -> None:
    assert cli("report", runs[True], "--figures", tmp_path / "a" / "b")[0] == 0
    files = {path.stem: path for path in (tmp_path / "a" / "b").iterdir()}
    assert {"causes-chart", "latency-time", "latency-curve", "stages-chart", "traffic-chart"} <= set(files)
    for path in files.values():
        picture = ElementTree.parse(path).getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg" and float(picture.attrib["width"]) > 0
        assert "var(" not in path.read_text() and "#ffffff" in path.read_text()
    (tmp_path / "file").write_text("")
    assert "--figures" in refused(cli("report", runs[True], "--figures", tmp_path / "file"))


def test_partial_and_whole_runs_compare(runs: dict[bool, Path], cli: Cli) -> None:
    code, out, err = cli("compare", runs[True], runs[False], "--json", "-")
    assert code == 0, err
    assert json.loads(out)["after"]["requests"]["ok"] == N


WRONG = ["", "nothing", "a" * 5000, "file", "empty", "/proc", "/dev/null", "bad\nname"]


@pytest.mark.parametrize("where", WRONG, ids=range(len(WRONG)))
def test_what_is_no_run(
    where: str, runs: dict[bool, Path], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("empty").mkdir()
    refused(cli("report", where))
    refused(cli("compare", where, runs[True]))
    refused(cli("compare", runs[True], where))
    refused(cli("report", runs[True], "--baseline", where))


BAD_OPTIONS = [
    ("--percentile", "100"),
    ("--percentile", "nan"),
    ("--seed", "-1"),
    ("--gate", "p99<"),
    ("--gate", "p99<=baseline"),
    ("--json", "no/such/folder/x.json"),
    ("--out", "/dev/null/x"),
    ("--nothing",),
]


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_bad_options(options: tuple[str, ...], runs: dict[bool, Path], cli: Cli) -> None:
    refused(cli("report", runs[True], *options))


def test_missing_arguments(runs: dict[bool, Path], cli: Cli) -> None:
    refused(cli("report"))
    refused(cli("compare", runs[True]))
    refused(cli("compare", runs[True], runs[True], runs[True]))


METAS: list[tuple[str, Any]] = [
    ("objective", 3),
    ("objective", {"percentile": "x"}),
    ("settings", None),
    ("settings", {"batch_window_ms": "x"}),
    ("scheduled", "many"),
    ("machine", []),
    ("overhead", "none"),
    ("calibration", {"minor_fault_ns": None}),
    ("workload", ["w"]),
    ("probes", 3),
    ("warmup", 3),
    ("fixes", "gc.freeze"),
]


@pytest.mark.parametrize(("key", "value"), METAS)
@pytest.mark.parametrize("finished", [True, False])
def test_a_run_file_that_latfix_did_not_write(
    key: str, value: Any, finished: bool, runs: dict[bool, Path], cli: Cli
) -> None:
    file = runs[finished] / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    code, _, err = cli("report", runs[finished], "--json", "-")
    assert code in (0, 2)
    assert code == 0 or (err.startswith("latfix: ") and err.count("\n") == 1)


@settings(max_examples=20)
@given(data=st.data())
def test_any_damage_to_any_file(originals: dict[bool, Path], tmp_path: Path, cli: Cli, data: st.DataObject) -> None:
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(originals[data.draw(st.booleans())], folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    file = data.draw(st.sampled_from(files))
    content = file.read_bytes()
    # Bytes are changed where people edit: in text. What a crash does to the others is to cut them.
    ways = ["cut", "remove", "change"] if file.suffix in (".json", ".jsonl") else ["cut", "remove"]
    match data.draw(st.sampled_from(ways)):
        case "cut":
            file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        case "remove":
            file.unlink()
        case _:
            position = data.draw(st.integers(0, len(content) - 1))
            put = data.draw(st.binary(min_size=1, max_size=4))
            file.write_bytes(content[:position] + put + content[position + 1 :])

    code, out, err = cli("report", folder, "--json", "-")

    assert "Traceback" not in err
    if code == 0:
        assert json.loads(out)["schema"] == "latfix.diagnosis/1"
    else:
        assert (code in (2, 4) and out.strip() in ("",)) or code == 4
        assert err.startswith("latfix: ") and err.count("\n") == 1


def test_links_that_lead_in_a_circle(runs: dict[bool, Path], cli: Cli, tmp_path: Path) -> None:
    loop, other = tmp_path / "loop", tmp_path / "other"
    loop.symlink_to(other)
    other.symlink_to(loop)
    refused(cli("report", loop), str(loop))
    refused(cli("compare", runs[True], loop), str(loop))
    refused(cli("report", runs[True], "--json", loop), "--json")
    refused(cli("report", runs[True], "--json", "-", "--markdown", loop), "--markdown")
