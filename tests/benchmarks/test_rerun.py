"""Every committed result has a command and what it measures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import rerun
from benchmarks.result_file import RESULTS

ROOT = Path(__file__).resolve().parents[2]


def test_every_result_can_be_measured_again() -> None:
    assert {file.name for file in RESULTS.iterdir()} == set(rerun.CATALOGUE)
    for name, result in rerun.CATALOGUE.items():
        module = re.search(r"-m (benchmarks[.\w]*|pytest benchmarks/gpu)", result.command)
        assert module is not None, name
        place = module[1].removeprefix("pytest ").replace(".", "/")
        assert any((ROOT / f"{place}{end}").exists() for end in (".py", "/__init__.py")), name
        assert all((ROOT / folder).is_dir() for folder in result.measures), name


def test_the_oldest_part_dates_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def git(*words: str) -> str:
        calls.append(words)
        return "cccccccc\naaaaaaaa\n" if words[0] == "rev-list" else "ffffffff\n"

    monkeypatch.setattr(rerun, "git", git)
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"workloads": {"a": {"commit": "cccccccc"}, "b": [{"commit": "aaaaaaaa"}]}}))
    assert rerun.commit_of(file) == "aaaaaaaa" and {"cccccccc", "aaaaaaaa"} <= set(calls[-1])
    file.write_text(json.dumps({"date": "2026-11-23", "commit": None}))
    assert rerun.commit_of(file) == ""


def test_a_list_tells_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result without a commit is as old as its file at least; one whose code hardly changed is not stale."""
    counted = []

    def git(*words: str) -> str:
        if words[0] == "rev-list" and ".." in words[2]:
            counted.append(words[2])
            return "1\n2\n"
        if words[0] == "diff":  # of 40 lines, 30 were removed from one file, or 2 written into another
            return {"aaaaaaaa": "20\t30\ta.py", "ffffffff": "2\t0\tb.py"}.get(words[2], "30\t0\ta.py\n10\t0\tb.py")
        return "aaaaaaaa" if words[0] == "rev-list" else "ffffffff"

    monkeypatch.setattr(rerun, "git", git)
    monkeypatch.setattr(rerun, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["rerun", "--list"])
    known = rerun.Result(command="{python} -m benchmarks.x --out {file}", measures=("latfix",))
    monkeypatch.setattr(rerun, "CATALOGUE", {"a.json": known, "b.json": known})
    (tmp_path / "a.json").write_text('{"commit": "aaaaaaaa"}')
    (tmp_path / "b.json").write_text("{}")
    assert rerun.main() == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split(maxsplit=2)[1:] == ["aaaaaaaa", "stale: 2 commits since, 75 % of the code changed"]
    assert shown[2].split(maxsplit=2)[1:] == ["unknown", "2 commits since, 5 % of the code changed"]
    assert counted == ["aaaaaaaa..HEAD", "ffffffff..HEAD"]
    assert shown[1] == "    python -m benchmarks.x --out benchmarks/results/a.json"
