"""``latfix schema``: names, a schema, and where it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latfix.cli.app import main
from latfix.results import DOCUMENTS


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
        (["schema", "--out", "x.json"], "found no document;"),
    ],
)
def test_a_wrong_use_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
