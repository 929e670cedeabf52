"""Text from outside is shown literally."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.formatting import visible
from latfix.reports.html.page_file import render


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe 推薦 🧪", "größe 推薦 🧪"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\x00b", "a\\x00b"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202eexe.gnp", "\\u202eexe.gnp"),
        ("\u200fx", "\\u200fx"),
        ("\ud800", "\\ud800"),
        ("\ufffe", "\\ufffe"),
        ("\u2028", "\\u2028"),
        ("\x9b31m", "\\x9b31m"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_control_characters_become_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(text * 500, limit=10).endswith("…") and visible("a" * 10, limit=10) == "a" * 10


@given(st.text(), st.integers(min_value=1, max_value=300))
def test_the_result_is_one_printable_line_that_can_be_encoded(text: str, limit: int) -> None:
    shown = visible(text, limit=limit)
    shown.encode("utf-8")
    assert len(shown) <= limit
    assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in shown)


@given(st.text())
def test_html_texts_hold_no_markup(text: str) -> None:
    page = render("history.html", version="1", kind="k", heading=text, facts=text, trends=[], overview=[])
    heading, facts = re.findall('<h1>(.*)</h1>|<p class="facts">(.*)</p>', page)
    unbroken = re.compile(r'<span class="whole">(-[^<>"\']*)</span>')  # an option stays in one line
    assert not set("<>\"'") & set(unbroken.sub(r"\1", heading[0] + facts[1]))


@given(st.text())
def test_data_for_scripts_hold_no_markup_and_round_trip(text: str) -> None:
    page = render("history.html", kind="k", heading="h", facts="", trends=[], overview=[], points={text: [text]})
    ((data, rest),) = re.findall('<script type="application/json" id="points">(.*?)</script>(.*)', page, re.DOTALL)
    assert not set("<>&'\u2028") & set(data) and data.isascii()
    assert json.loads(data) == {text: [text]}
    assert page.count("<script") == 3 and rest.count("</script>") == 2
