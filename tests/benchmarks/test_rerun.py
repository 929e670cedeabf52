"""Every committed result has a command and what it measures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import rerun

ROOT = Path(__file__).resolve().parents[2]


def test_every_result_can_be_measured_again() -> None:
    assert {file.name for file in rerun.RESULTS.iterdir()} == set(rerun.CATALOGUE)
    for name, result in rerun.CATALOGUE.items():
        script = re.search(r"benchmarks[/.](\w+)(?:\.py)? ", f"{result.command} ")
        assert script is None or any((rerun.HERE / f"{script[1]}{end}").exists() for end in (".py", "")), name
        assert script is not None or result.command.startswith("latfix "), name
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
    file.write_text(json.dumps({"date": "2026-11-23"}))
    assert rerun.commit_of(file) == "ffffffff"
