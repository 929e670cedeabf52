"""``latfix init``: a workload that runs as it is."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from latfix.config.workload_toml import read_spec
from latfix.settings import RunnerSettings, rules_of
from latfix.traffic.io.reader import read_traffic
from tests.cli.conftest import refused
from tests.conftest import cli, succeeded


@pytest.mark.slow
def test_what_it_writes_runs_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "my workload"
    code, out, err = cli("init", folder)
    assert (code, err) == (0, "")
    assert str(folder) in out
    out = succeeded(cli("diagnose", folder, "--limit", 40, "--speed", 20, "--out", tmp_path / "run", "--json", "-"))
    assert json.loads(out)["requests"] == {"ok": 40, "error": 0, "timeout": 0, "shed": 0}


@pytest.mark.parametrize("name", ['quote"d', "new\nline", "ünïcode", "back\\slash", "a b", "'", "#"])
def test_any_folder_name_gives_a_file_that_reads(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    out = succeeded(cli("init", folder))
    assert shlex.split(out.partition("next: ")[2]) == ["latfix", "diagnose", str(folder)]
    spec = read_spec(folder)
    assert spec.entry == "workload:Example"
    assert len(read_traffic(spec.traffic)) > 100


def test_its_settings_are_settings(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()  # an empty folder will do
    assert cli("init", tmp_path / "w")[0] == 0
    text = (tmp_path / "w" / "workload.toml").read_text()
    document = tomllib.loads(text)
    # Commented lines are offers that must work when the mark is taken away.
    offered = [
        line[2:].partition("=")[0].strip() for line in text.splitlines() if line.startswith("# ") and "=" in line
    ]
    for key in [*document["runner"], *(key for key in offered if key.isidentifier() and key != "length")]:
        assert key in rules_of(RunnerSettings)


@pytest.mark.parametrize("what", ["file", "full folder", "below a file", "long name"])
def test_nothing_is_overwritten(tmp_path: Path, what: str) -> None:
    folder = tmp_path / ("a" * 5000 if what == "long name" else "there")
    if what in ("file", "below a file"):
        folder.write_text("mine")
    elif what == "full folder":
        folder.mkdir()
        (folder / "mine").write_text("mine")
    refused(cli("init", folder / "below" if what == "below a file" else folder))
    if what != "long name":
        assert (folder / "mine" if what == "full folder" else folder).read_text() == "mine"
