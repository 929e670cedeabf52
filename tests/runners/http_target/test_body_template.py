"""Bodies are filled in as JSON: no value can escape its placeholder."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.request import Request
from latfix.runners.http_target.body_template import BodyTemplate, read_template
from latfix.traffic.schedule import Traffic

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def request(payload: Any = None, **features: Any) -> Request:
    return Request(id="r 1", arrival_s=0.5, features=features, payload=payload)


def filled(template: str, one: Request) -> Any:
    return json.loads(BodyTemplate(template).render(one))


@given(JSON)
def test_a_whole_placeholder_takes_any_value(value: Any) -> None:
    assert filled('{"a": "{payload}", "b": [1, "{payload}"]}', request(value)) == {"a": value, "b": [1, value]}


@given(st.text())
def test_a_text_stays_within_its_quotation_marks(value: str) -> None:
    assert filled('{"a": "<{payload}>"}', request(value)) == {"a": f"<{value}>"}


def test_places_reach_into_payloads_and_braces_can_be_written() -> None:
    one = request({"rows": [[1, 2], [3]]}, tokens=7)
    template = '{"x": "{payload.rows.1.0}", "n": "{tokens}", "t": "{{n}} is {tokens}", "{id}": null}'
    assert filled(template, one) == {"x": 3, "n": 7, "t": "{n} is 7", "r 1": None}


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{not json", "no JSON"),
        ('{"a": {payload}}', "no JSON"),
        ('{"a": "{}"}', "a brace without a name"),
        ('{"a": "}"}', "a brace without a name"),
        ('{"a": NaN}', "NaN is not a number of JSON"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_an_invalid_template_is_a_one_line_error(template: str, found: str) -> None:
    with pytest.raises(InputError, match=found) as refused:
        read_template(template)
    assert "\n" not in refused.value.message


def test_a_place_that_the_traffic_does_not_have_is_refused_before_anything_is_sent() -> None:
    traffic = Traffic.plain(np.array([0]), features={"tokens": np.array([3])}, payloads=[{"a": 1}])
    with pytest.raises(InputError, match=r"found \{token\}.*did you mean.*tokens"):
        BodyTemplate('{"a": "{token}"}').check(traffic)
    for missing in ("payload.b", "payload.\N{SUPERSCRIPT TWO}"):
        with pytest.raises(InputError, match=re.escape(missing)):
            BodyTemplate(f'{{"a": "{{{missing}}}"}}').check(traffic)
    with pytest.raises(InputError, match="neither JSON nor a file"):
        read_template("no/such/file.json")
