"""``latfix report`` and ``latfix compare`` on folders that are no runs, or are damaged ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.conftest import N, refused
from tests.conftest import cli, succeeded


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_reported_whatever_its_state(runs: dict[bool, Path], finished: bool) -> None:
    out = succeeded(cli("report", runs[finished], "--json", "-"))
    document = json.loads(out)
    assert document["partial"] is not finished
    assert document["requests"] == {"ok": N - 1, "error": 1, "timeout": 0, "shed": 0}
    assert (runs[finished] / "report.html").read_text().rstrip().endswith("</html>")


def test_out_leaves_the_run_as_it_was(runs: dict[bool, Path], tmp_path: Path) -> None:
    before = {path.name for path in runs[True].iterdir()}
    assert cli("report", runs[True], "--out", tmp_path / "out")[0] == 0
    assert {path.name for path in runs[True].iterdir()} == before
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"diagnosis.json", "causes.parquet", "report.html"}


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_whose_name_is_not_utf8(runs: dict[bool, Path], tmp_path: Path, finished: bool) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(runs[finished], folder)
    for arguments in (
        ("report", folder),
        ("report", folder, "--out", folder / os.fsdecode(b"\xe9")),
        ("export", folder, "--to", "parquet", "--out", tmp_path / os.fsdecode(b"\xe9.parquet")),
        ("compare", folder, folder),
    ):
        succeeded(cli(*arguments))


def test_pictures_are_files_that_need_no_page(runs: dict[bool, Path], tmp_path: Path) -> None:
    assert cli("report", runs[True], "--figures", tmp_path / "a" / "b")[0] == 0
    files = {path.stem: path for path in (tmp_path / "a" / "b").iterdir()}
    assert {"causes-chart", "latency-time", "latency-curve", "stages-chart", "traffic-chart"} <= set(files)
    for path in files.values():
        picture = ElementTree.parse(path).getroot()
        assert picture.tag == "{http://www.w3.org/2000/svg}svg" and float(picture.attrib["width"]) > 0
        assert "var(" not in path.read_text() and "#ffffff" in path.read_text()
    (tmp_path / "file").write_text("")
    assert "--figures" in refused(cli("report", runs[True], "--figures", tmp_path / "file"))


def test_the_next_step_names_the_folder_of_the_workload(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is no argument of a command."""
    meta = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**meta, "workload": "ranker", "workload_folder": "/srv/my ranker"}))
    named: list[str] = []

    def render(*_: object, workload_argument: str, **__: object) -> str:
        named.append(workload_argument)
        return ""

    monkeypatch.setattr("latfix.reports.terminal.diagnosis.render_diagnosis", render)
    assert cli("report", run)[0] == 0
    assert named == ["/srv/my ranker"]


def test_partial_and_whole_runs_compare(runs: dict[bool, Path]) -> None:
    out = succeeded(cli("compare", runs[True], runs[False], "--json", "-"))
    assert json.loads(out)["after"]["requests"]["ok"] == N - 1


WRONG = ["", "nothing", "a" * 5000, "file", "empty", "/proc", "/dev/null", "bad\nname"]


@pytest.mark.parametrize("where", WRONG, ids=range(len(WRONG)))
def test_what_is_no_run(where: str, runs: dict[bool, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_bad_options(options: tuple[str, ...], runs: dict[bool, Path]) -> None:
    refused(cli("report", runs[True], *options))


def test_missing_arguments(runs: dict[bool, Path]) -> None:
    refused(cli("report"))
    refused(cli("compare", runs[True]))
    refused(cli("compare", runs[True], runs[True], runs[True]))


@settings(max_examples=20)
@given(data=st.data())
def test_any_damage_to_any_file(originals: dict[bool, Path], tmp_path: Path, data: st.DataObject) -> None:
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

    answer = cli("report", folder, "--json", "-")

    if answer[0] == 0:
        assert json.loads(answer[1])["schema"] == "latfix.diagnosis/1"
    else:
        refused(answer)


def test_links_that_lead_in_a_circle(runs: dict[bool, Path], tmp_path: Path) -> None:
    loop, other = tmp_path / "loop", tmp_path / "other"
    loop.symlink_to(other)
    other.symlink_to(loop)
    refused(cli("report", loop), str(loop))
    refused(cli("compare", runs[True], loop), str(loop))
    refused(cli("report", runs[True], "--json", loop), "--json")
    refused(cli("report", runs[True], "--json", "-", "--markdown", loop), "--markdown")
