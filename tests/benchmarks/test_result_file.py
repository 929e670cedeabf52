"""Every result tells when, at which commit and on which machine it was measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rerun, result_file

SCRIPTS = sorted((Path(result_file.__file__).parent).rglob("*.py"))


def test_a_result_begins_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "new" / "result.json"
    result_file.write_result(file, {"rows": [1, 2], "machine": {"gpu": "of the measured process"}})
    document = json.loads(file.read_text())
    assert list(document)[:2] == ["date", "commit"] and document["rows"] == [1, 2]
    assert document["machine"] == {"gpu": "of the measured process"}
    assert document["commit"] == result_file.git("rev-parse", "--short=8", "HEAD")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", document["date"])
    result_file.write_result(None, {})


def test_outer_levels_on_one_line_each(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    result_file.write_result(file, {"a": {"b": {"c": [1, 2]}, "d": {}}}, levels=2)
    assert '\n  "b": {"c": [1, 2]},\n  "d": {}\n' in file.read_text()


def test_a_continued_result_keeps_the_origins_of_its_parts(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    assert result_file.earlier_result(file) == {} == result_file.earlier_result(None)
    file.write_text(json.dumps({"date": "2026-11-20", "commit": "aaaaaaaa", "machine": {}, "part": 1}))
    result_file.write_result(file, result_file.earlier_result(file) | {"other": 2})
    document = json.loads(file.read_text())
    assert document["part"] == 1 and document["other"] == 2
    assert document["earlier"] == [{"date": "2026-11-20", "commit": "aaaaaaaa", "machine": {}}]
    assert set(rerun._commits(document)) == {document["commit"], "aaaaaaaa"}


def test_code_that_differs_from_the_commit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"rev-parse": "aaaaaaaa", "status": " M runners/engine/worker.py"}
    monkeypatch.setattr(result_file, "git", lambda *words: answers[words[0]])
    assert result_file._commit() == {"commit": "aaaaaaaa", "uncommitted": True}
    answers["status"] = ""
    assert result_file._commit() == {"commit": "aaaaaaaa"}

    def no_repository(*words: str) -> str:
        raise subprocess.CalledProcessError(128, words)

    monkeypatch.setattr(result_file, "git", no_repository)
    assert result_file._commit() == {"commit": None}


def test_the_document_of_a_command_gets_an_origin(tmp_path: Path) -> None:
    file = tmp_path / "inspected.json"
    command = [sys.executable, "-m", "benchmarks.result_file", str(file), "latfix", "traffic", "inspect"]
    traffic = tmp_path / "traffic.jsonl"
    traffic.write_text('{"arrival_s": 0}\n{"arrival_s": 1}\n')
    here: dict[str, Any] = {"capture_output": True, "text": True, "cwd": result_file.ROOT, "check": False}
    ended = subprocess.run([*command, str(traffic)], **here)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(file.read_text())
    assert list(document)[:2] == ["date", "commit"] and len(document) > 4
    wrong = subprocess.run(command[:4], **here)
    assert wrong.returncode == 2 and "latfix COMMAND" in wrong.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.relative_to(result_file.ROOT).as_posix())
def test_only_one_place_writes_results(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    if '"--out"' in text and "gpu" not in script.parts:
        assert "write_result(" in text
    if script.name != "result_file.py":
        assert not any(own in text for own in ("out.write_text", "date.today"))


@pytest.mark.parametrize("name", sorted(rerun.CATALOGUE))
def test_a_committed_result_says_where_its_commit_is_from(name: str) -> None:
    """Found elsewhere than in the measurement: ``commit_from`` is there, as documents or the history tell it."""
    document = json.loads((result_file.RESULTS / name).read_text(encoding="utf-8"))
    if "commit_from" in document:
        page = document["commit_from"]
        assert re.fullmatch("[0-9a-f]{8}", document["commit"])
        assert page == "history" or document["commit"][:7] in (result_file.ROOT / page).read_text(encoding="utf-8")
