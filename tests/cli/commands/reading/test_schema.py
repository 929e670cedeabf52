"""``latfix schema``: names, a schema, and where it is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from latfix.cli.app import main
from latfix.files.json_documents import json_schema
from latfix.results import DOCUMENTS, document_type, read_result
from tests.conftest import cli


def test_names_are_listed_and_each_has_a_schema(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["schema"]) == 0
    names = capsys.readouterr().out.split()
    assert names == list(DOCUMENTS)
    assert main(["schema", "run"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["properties"]["schema"] == {"const": "latfix.run/1"}
    assert main(["schema", "run", "--out", str(tmp_path / "run.schema.json")]) == 0
    assert json.loads((tmp_path / "run.schema.json").read_text()) == printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schema", "nothing"], "expected one of run, diagnosis"),
        (["schema", "--out", "x.json"], "found no document name;"),
    ],
)
def test_a_wrong_use_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_what_commands_write_keeps_to_the_schemas(diagnose: Any, tmp_path: Path) -> None:
    """Each document is valid, names its schema, and is read and written again without a change."""
    history = ("--history", tmp_path / "h.db")
    for file in ("diagnosis", "second"):
        assert diagnose("--json", tmp_path / f"{file}.json", "--slowest", 2, "--gate", "p99<9s", *history)[0] == 0
    runs = tmp_path / "run-1", tmp_path / "run-2"
    assert cli("compare", *runs, "--gate", "p99<9s", "--json", tmp_path / "comparison.json")[0] == 0
    assert cli("doctor", "--seconds", 0, "--json", tmp_path / "doctor.json")[0] == 0
    assert cli("fragmentation", "--turns", 50, "--json", tmp_path / "fragmentation.json")[0] == 0
    assert cli("history", *history, "--json", tmp_path / "history.json")[0] == 0
    shutil.copy(runs[0] / "run.json", tmp_path)
    for name in ("run", "diagnosis", "comparison", "doctor", "fragmentation", "history"):
        document = json.loads((tmp_path / f"{name}.json").read_text())
        jsonschema.validate(document, json_schema(document_type(name)), cls=jsonschema.Draft202012Validator)
        assert document["schema"] == f"latfix.{name}/1"
        assert read_result(tmp_path / f"{name}.json").to_json() == document
