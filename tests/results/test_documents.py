"""Results round-trip: documents of an earlier version are read, and are the same when they are written again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from latfix.errors import InputError
from latfix.files.json_documents import json_schema
from latfix.results import DOCUMENTS, document_type, read_result
from latfix.results.request_explanation import Story

#: Written at 76857f2: commands on the recommender sample, cut down, steps of an optimization added by hand.
FOLDER = Path(__file__).parent / "documents"
WRITTEN = sorted(path.stem for path in FOLDER.glob("*.json"))


def written(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_document_is_the_same_when_written_again(name: str) -> None:
    read = read_result(FOLDER / f"{name}.json")
    assert isinstance(read, document_type(name))
    assert read.to_json() == written(name)


def test_an_explained_request_is_the_same_when_written_again() -> None:
    for entry in written("diagnosis")["requests_explained"]:
        assert Story.from_json(entry).to_json() == entry


@pytest.mark.parametrize("name", WRITTEN)
def test_a_document_follows_the_schema_of_its_type(name: str) -> None:
    schema = json_schema(document_type(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(written(name), schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", WRITTEN)
def test_keys_of_a_newer_version_are_skipped_and_those_of_a_run_kept(name: str) -> None:
    document = {**written(name), "of_a_newer_version": {"deep": [1]}}
    assert document_type(name).from_json(document).to_json() == (document if name == "run" else written(name))


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_type_has_a_schema_with_a_description(name: str) -> None:
    schema = json_schema(document_type(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["description"] and schema["properties"]
    assert all(part["description"] for part in schema.get("$defs", {}).values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "unreadable"),
        ("[]", "no object"),
        ('{"schema": "latfix.other/1"}', "expected one of"),
        ("{}", "expected one of"),
        ('{"schema": "latfix.diagnosis/1", "workload": 3}', "found workload = 3; expected a text"),
    ],
)
def test_another_file_than_a_result_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError) as caught:
        read_result(tmp_path / "x.json")
    assert message in caught.value.message and str(tmp_path / "x.json") in caught.value.message
