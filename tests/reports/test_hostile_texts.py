"""Any text from outside stays text: on a terminal, and in every export."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.cli.commands.reading.report import _rendered
from latfix.formatting import visible
from latfix.profilers.chunked.record_chunks import WholeRecord
from latfix.reports.ci.ci_summary import Summary
from latfix.reports.ci.github_annotations import annotation_lines
from latfix.reports.ci.gitlab_code_quality import code_quality
from latfix.reports.comparison_rows import GateRow
from latfix.reports.exports import request_tables
from latfix.reports.exports.chrome_trace import chrome_trace
from latfix.reports.exports.openmetrics import openmetrics
from latfix.reports.exports.otlp_metrics import otlp_metrics
from latfix.reports.exports.otlp_spans import otlp_lines
from latfix.reports.exports.speedscope import speedscope
from latfix.results import document_type
from latfix.results.diagnosis import StackTime
from tests.reports.conftest import HOSTILE, make_diagnosis, make_record, printed, unharmed
from tests.reports.exports.test_exports import whole, with_batches
from tests.results.test_documents import FOLDER, WRITTEN, written

#: What readers obey: escapes, line ends, direction, markup, formulas, separators, workflow commands.
_OBEYED = "\x00\x07\x08\x1b\x9b\x85\r\n\t\u2028\u202e\u200f\ufeff\ufffe[]<>&;|`*_#:%=+-@\"'\\{}$!~m0 "
TEXTS = st.text(alphabet=st.one_of(st.sampled_from(_OBEYED), st.characters(exclude_categories=["Cs"])), max_size=40)
ANY_TEXTS = st.text(alphabet=st.one_of(st.sampled_from(_OBEYED + "\ud800"), st.characters()), max_size=40)
#: Values that readers of a document check, or that are one of a few words.
_CHECKED = {
    *("schema", "verdict", "judged", "class", "status", "state", "kind", "gate", "metric", "command", "group"),
    *("intensity", "stage", "best", "priority", "area", "accuracy_kind", "differs", "date", "started"),
}
#: Keys whose own keys are names from outside.
_NAMING = ("versions", "stages_ms")
_MARK = "[b]q[/b]"
_HIDDEN = ("Cc", "Cs", "Zl", "Zp")


def attacked(value: Any, attack: str, key: str = "") -> Any:
    """The document with a text from outside in place of every text that is not checked."""
    if isinstance(value, dict):
        before = attack if key in _NAMING else ""
        return {before + name: attacked(each, attack, name) for name, each in value.items()}
    if isinstance(value, list):
        return [attacked(each, attack, key) for each in value]
    return attack if isinstance(value, str) and key not in _CHECKED else value


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each)
    elif isinstance(value, str):
        yield value


def harmless(document: Any) -> Any:
    """The parsed document, in which no text has a character that a terminal obeys."""
    found = {unicodedata.category(c) for text in texts_in(document) for c in text}
    assert not found & set(_HIDDEN)
    return document


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "run"])
@settings(max_examples=15)
@given(attack=ANY_TEXTS)
def test_no_text_is_obeyed_by_a_terminal(name: str, attack: str) -> None:
    document = attacked(written(name), f"{_MARK}{attack}")
    result = document_type(name).from_json(document)
    for width, verbose in ((60, False), (200, True)):
        text = printed(_rendered(result, FOLDER, FOLDER, verbose=verbose), width=width)
        unharmed(text, width, figures=False)
        assert not any(unicodedata.category(c) in _HIDDEN for c in text if c != "\n")
    assert _MARK in text, "markup is shown, not obeyed"


@pytest.mark.parametrize(
    ("name", "change"), [("backends", {"backends": []}), ("fragmentation", {"policies": [], "recorded": {"ooms": 1}})]
)
def test_a_document_without_rows_is_shown(name: str, change: dict[str, Any]) -> None:
    result = document_type(name).from_json({**written(name), **change})
    assert printed(_rendered(result, FOLDER, FOLDER, verbose=False)).strip()


@settings(max_examples=25)
@given(attack=ANY_TEXTS)
def test_traces_spans_and_profiles_hold_texts_and_no_more(attack: str) -> None:
    record = with_batches(make_record(12, text=attack, error_share=0.3, warmup=1))
    record.events["detail"][0] = {attack: attack, "deep": [attack]}
    record = replace(record, meta=record.meta.updated(device=attack, origin={"host": attack}))
    source = WholeRecord(record)
    stacks = [StackTime(unit="compute", frames=(f"{attack}:1 {attack}",), slow_ms=2.0, typical_ms=1.0, looks=3)]
    trace = harmless(json.loads(whole("".join(chrome_trace(source)))))
    assert len([e for e in trace["traceEvents"] if e["ph"] == "b" and "args" in e]) == len(source)
    lines = [harmless(json.loads(whole(line))) for line in otlp_lines(source)]
    assert sum("parentSpanId" not in s for d in lines for s in d["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 12
    harmless(json.loads(whole("".join(speedscope(source, stacks)))))
    diagnosis = make_diagnosis(record, text=attack, causes=("python.gc", attack or "x"))
    metrics = harmless(json.loads(whole(otlp_metrics(diagnosis, source))))
    names = {each["name"] for each in metrics["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}
    assert all(re.fullmatch(r"latfix\.[a-z_]+", each) for each in names)


@settings(max_examples=25)
@given(attack=ANY_TEXTS)
def test_metrics_keep_their_lines(attack: str) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="not installed")
    record = make_record(12)
    diagnosis = make_diagnosis(record, causes=("python.gc", "c"))
    causes = tuple(replace(each, cause=attack) if each.cause == "c" else each for each in diagnosis.causes)
    diagnosis = replace(diagnosis, workload=attack, causes=causes)
    text = whole("".join(openmetrics(diagnosis, WholeRecord(record))))
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    labels = [each.labels for each in families["latfix_cause_tail_seconds"].samples]
    shown = visible(attack, limit=300)
    assert {each["workload"] for each in labels} == {shown}
    assert {each["cause"] for each in labels} == {"python.gc", "unexplained", shown}


@given(attack=TEXTS)
def test_a_table_keeps_its_cells_and_holds_no_formula(attack: str) -> None:
    names = ["id", f"feature.{attack}", attack]
    columns = [[attack, "plain"], [1.5, None], [attack, None]]
    table = pa.Table.from_arrays([pa.array(column) for column in columns], names=names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_tables, "request_tables", lambda _folder: [table])
        source: Any = WholeRecord(make_record(1))
        text = whole("".join(request_tables.csv_pieces(source)))
    rows = list(csv.reader(io.StringIO(text)))
    assert [len(row) for row in rows] == [3, 3, 3]
    assert rows[0][1].endswith(visible(attack)) and rows[1][0].endswith(visible(attack))
    assert not any(cell.startswith(("=", "+", "-", "@", "\t")) for row in rows for cell in row)


@given(attack=ANY_TEXTS)
def test_findings_for_ci_stay_one_command_and_one_text_each(attack: str) -> None:
    gates = tuple(GateRow(gate=word + attack, outcome=word, reason=attack) for word in ("failed", "undecided"))
    summary = Summary(command="gate", workload=attack, gates=gates, failure=attack, sentence=attack)
    for line in annotation_lines(summary):
        whole(line)
        assert re.fullmatch(r"::(error|warning|notice) title=[^,:\r\n]*::[^\r\n]*", line)
        assert not re.search("%(?!25|0A|0D|3A|2C)", line)
    findings = harmless(json.loads(whole(code_quality(summary, path=attack))))
    assert len(findings) == 2 + bool(attack)
    assert all(set(each) == {"description", "check_name", "fingerprint", "severity", "location"} for each in findings)


def test_the_attacks_reach_the_terminal() -> None:
    """Every document has texts to attack, so that the property above is not empty."""
    for name in WRITTEN:
        assert HOSTILE in set(texts_in(attacked(written(name), HOSTILE)))
