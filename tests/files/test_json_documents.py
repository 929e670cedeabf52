"""Dataclasses as JSON documents: writing, reading older and newer ones, and their schema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from latfix.errors import InputError
from latfix.files.json_documents import HIDDEN, Document, json_key, json_schema
from latfix.lower_bound import AtLeast


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Document):
    """A part.

    :param kind: which of
        two.
    """

    kind: Literal["a", "b"] = field(metadata=json_key("class"))
    pairs: tuple[tuple[str, int], ...] = field(default=(), metadata=json_key(objects=("name", "ns")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Document):
    """A whole."""

    SCHEMA: ClassVar[str] = "latfix.whole/1"
    COMPUTED: ClassVar[tuple[str, ...]] = ("tail.twice",)

    count: int
    share: float
    excess: float = field(metadata=json_key("tail.excess"))
    bounds: tuple[float, float] | None = None
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    anything: Mapping[str, Any] = field(default_factory=dict)
    value: int | float | str = 0
    note: str | None = field(default=None, metadata=json_key(omit_empty=True))
    private: int = field(default=7, metadata=HIDDEN)

    @property
    def twice(self) -> float:
        """Computed."""
        return 2 * self.excess


WHOLE = Whole(
    count=3,
    share=math.nan,
    excess=1.5,
    bounds=(1.0, 2.0),
    parts=(Part(kind="a", pairs=(("x", 1), ("y", 2))),),
    by_name={"one": Part(kind="b")},
    anything={"list": [1, None, {"deep": (math.inf,)}]},
    value="text",
    private=1,
)
DOCUMENT = {
    "schema": "latfix.whole/1",
    "count": 3,
    "share": None,
    "tail": {"excess": 1.5, "twice": 3.0},
    "bounds": [1.0, 2.0],
    "parts": [{"class": "a", "pairs": [{"name": "x", "ns": 1}, {"name": "y", "ns": 2}]}],
    "by_name": {"one": {"class": "b", "pairs": []}},
    "anything": {"list": [1, None, {"deep": [None]}]},
    "value": "text",
}


def test_a_document_is_read_as_it_was_written() -> None:
    assert WHOLE.to_json() == DOCUMENT
    read = Whole.from_json(json.loads(json.dumps(DOCUMENT, allow_nan=False)))
    assert math.isnan(read.share) and read.private == 7
    assert read.parts == WHOLE.parts and read.by_name == WHOLE.by_name and read.bounds == WHOLE.bounds
    assert read.to_json() == DOCUMENT


def test_unknown_keys_are_skipped_and_missing_ones_filled_in() -> None:
    older = Whole.from_json({"count": 3, "future": {"key": 1}})
    assert math.isnan(older.excess) and older.bounds is None and older.parts == () and older.note is None


@pytest.mark.parametrize("bound", [5000.0, 5000])
def test_a_bound_is_read_however_a_program_wrote_the_number(bound: float) -> None:
    share = Whole.from_json({"count": 3, "share": None, "share_at_least": bound}).share
    assert isinstance(share, AtLeast) and share.bound == 5000.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 1.5}, "found count = 1.5; expected a whole number"),
        ({"count": True}, "found count = True; expected a whole number"),
        ({"share": "much"}, "found share = 'much'; expected a number"),
        ({"bounds": [1.0]}, "found bounds = [1.0]; expected 2 values"),
        ({"parts": {}}, "found parts = {}; expected a list"),
        ({"parts": [3]}, "found parts[0] = 3; expected an object"),
        ({"parts": [{"class": 4}]}, "found parts[0].class = 4; expected a text"),
        ({"by_name": {"x": {"class": "a", "pairs": [{"name": 1}]}}}, "found by_name.x.pairs[0][0] = 1"),
        ({"value": []}, "found value = []; expected int or float or str"),
        ({"schema": "latfix.other/1"}, "found schema = 'latfix.other/1'; expected 'latfix.whole/1'"),
    ],
)
def test_invalid_values_are_refused_with_their_key(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Whole.from_json({**DOCUMENT, **change})
    assert message in caught.value.message


@pytest.mark.parametrize("document", [None, [], "text", {"share": 1.0}])
def test_another_file_than_a_document_is_refused(document: Any) -> None:
    with pytest.raises(InputError):
        Whole.from_json(document)


def test_the_schema_names_every_key_with_its_type_and_description() -> None:
    schema = json_schema(Whole)
    assert schema["properties"]["schema"] == {"const": "latfix.whole/1"}
    assert set(schema["properties"]) == {*DOCUMENT, "note"} and set(schema["required"]) == set(DOCUMENT)
    assert schema["properties"]["tail"]["properties"]["twice"] == {"type": ["number", "null"]}
    assert schema["properties"]["parts"] == {"type": "array", "items": {"$ref": "#/$defs/Part"}}
    part = schema["$defs"]["Part"]["properties"]
    assert part["class"] == {"enum": ["a", "b"], "description": "which of two."}
    assert part["pairs"]["items"]["properties"] == {"name": {"type": "string"}, "ns": {"type": "integer"}}
