"""What CI reads: JUnit XML, Markdown and annotations, from ordinary and hostile documents."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml
from markdown_it import MarkdownIt

from latfix.formatting import milliseconds
from latfix.reports.ci.ci_summary import Summary, read_summary
from latfix.reports.ci.github_annotations import annotation_lines
from latfix.reports.ci.junit import junit_xml
from latfix.reports.ci.markdown import markdown, text
from latfix.reports.comparison_rows import Arm, GateRow, Outcome
from latfix.results.optimization import Optimization
from tests.reports.conftest import Session

HOSTILE = [
    "| cell | --- |",
    "a|b",
    "<script>alert(1)</script>",
    "<!-- --><img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "![x](http://x/y.png)",
    "https://example.com www.example.com",
    "@everyone @org/team",
    "# heading",
    "`code` ``more``",
    "**bold** _em_ ~~no~~ $x$",
    "line\nbreak\r\n\n## next",
    "\x00\x07\x1b[31mred\x1b[0m\x9b",
    "\ud800\ufffe\uffff",
    "\u202egnp.exe",
    "::error::no %0A ##[error]",
    "]]> &amp; &#60;",
    "1. one\n- two\n> three",
    "\\| \\\\",
    "a" * 5000,
    "",
    " \t ",
    "推薦 größe 🧪",
]


OUTCOMES: tuple[Outcome, ...] = ("failed", "undecided", "passed")


def _summary(**changes: Any) -> Summary:
    values: dict[str, Any] = {
        "command": "diagnose",
        "workload": "ranker",
        "device": "cpu",
        "verdict": "python.gc",
        "sentence": "p99 is 412 ms, 3.1x the median",
        "gates": (
            GateRow(gate="p99<200ms", outcome="failed", reason="p99 is 412 ms, limit 200 ms"),
            GateRow(gate="p50<40ms", outcome="undecided", reason="p50 is 39 ms: about 900 more requests would tell"),
            GateRow(gate="error_rate<1%", outcome="passed", reason="error_rate is 0 %"),
        ),
    }
    return Summary(**{**values, **changes})


def _attacked(attack: str) -> Summary:
    gates = tuple(GateRow(gate=attack, outcome=outcome, reason=attack) for outcome in OUTCOMES)
    texts = dict.fromkeys(("workload", "device", "verdict", "sentence"), attack)
    return _summary(**texts, gates=gates, notes=(attack,), unjudged=(attack,))


def _junit(summary: Summary, **changes: Any) -> ElementTree.Element:
    options: dict[str, Any] = {"started": "2026-01-02T03:04:05", "seconds": 12.3456, "host": "builder", **changes}
    return ElementTree.fromstring(junit_xml(summary, **options))


def test_junit_has_one_testcase_a_gate() -> None:
    root = _junit(_summary())
    (suite,) = root
    assert (root.tag, suite.tag, root.attrib) == ("testsuites", "testsuite", {})
    names = {"name": "latfix diagnose", "package": "ranker", "id": "0", "hostname": "builder", "time": "12.346"}
    counts = {"tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    assert suite.attrib == {**names, **counts, "timestamp": "2026-01-02T03:04:05"}
    assert [child.tag for child in suite] == ["properties", *["testcase"] * 3, "system-out", "system-err"]
    failed, undecided, passed = suite.findall("testcase")
    assert [case.get("name") for case in (failed, undecided, passed)] == ["p99<200ms", "p50<40ms", "error_rate<1%"]
    assert {case.get("classname") for case in suite.findall("testcase")} == {"latfix.ranker"}
    assert [child.tag for child in failed] == ["failure"] and failed[0].get("type") == "failed"
    assert failed[0].get("message") == failed[0].text == "p99 is 412 ms, limit 200 ms"
    assert [child.tag for child in undecided] == ["skipped"] and "900 more requests" in (undecided[0].text or "")
    assert len(passed) == 0


def test_junit_figures_are_numbers_that_programs_read() -> None:
    arm = Arm(label="", latency_ms={"p99": 12345.6}, throughput_rps=None, requests={}, accuracy=None)
    (suite,) = _junit(_summary(run=arm))
    assert {each.get("name"): each.get("value") for each in suite[0]}["p99 ms"] == "12346"


def test_junit_of_a_run_that_failed_passes_nothing() -> None:
    (suite,) = _junit(_summary(gates=(), failure="the model failed", unjudged=("p99<200ms", "mean<1s")))
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("2", "2", "0")
    assert [case[0].tag for case in suite.findall("testcase")] == ["error", "error"]
    (alone,) = _junit(_summary(gates=(), failure="the model failed"))
    (case,) = alone.findall("testcase")
    assert (case.get("name"), case[0].tag, case[0].text) == ("run", "error", "the model failed")


# What both published schemas ask: Jenkins' (xunit plugin, junit-10.xsd) and Ant's (JUnit.xsd of Windy Road).
_SUITE = {"name", "package", "id", "hostname", "timestamp", "tests", "failures", "errors", "skipped", "time"}


def _check_schema(root: ElementTree.Element) -> None:
    assert root.tag == "testsuites" and not root.attrib
    for suite in root:
        assert suite.tag == "testsuite" and set(suite.attrib) == _SUITE
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
        assert re.fullmatch(r"\d+\.\d{3}", suite.attrib["time"])
        tags = [child.tag for child in suite]
        assert tags[0] == "properties" and tags[-2:] == ["system-out", "system-err"]
        assert set(tags[1:-2]) <= {"testcase"}
        for prop in suite[0]:
            assert prop.tag == "property" and set(prop.attrib) == {"name", "value"} and prop.attrib["name"]
        outcomes = []
        for case in suite.findall("testcase"):
            assert set(case.attrib) == {"name", "classname", "time"} and len(case) <= 1
            for child in case:
                assert set(child.attrib) == ({"message"} if child.tag == "skipped" else {"type", "message"})
                assert len(child) == 0
                outcomes.append(child.tag)
        for token in (suite.attrib["name"], suite.attrib["package"], suite.attrib["hostname"]):
            assert token and token == " ".join(token.split())
        counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
        assert counts["tests"] == len(suite.findall("testcase"))
        assert counts["failures"] == outcomes.count("failure")
        assert counts["errors"] == outcomes.count("error")
        assert counts["skipped"] == outcomes.count("skipped")


@given(st.sampled_from(HOSTILE) | st.text(max_size=60))
def test_junit_keeps_its_shape_whatever_it_is_given(attack: str) -> None:
    written = junit_xml(_attacked(attack), started="2026-01-02T03:04:05", seconds=-1.0, host=attack)
    root = ElementTree.fromstring(written)
    _check_schema(root)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", written)
    assert len(root[0].findall("testcase")) == 4
    (suite,) = JUnitXml.fromstring(written)
    found = [type(each.result[0]).__name__ if each.result else "passed" for each in suite]
    assert found == ["Failure", "Skipped", "passed", "Error"]


def _html(summary: Summary) -> str:
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return str(reader.render(markdown(summary)))


def test_markdown_shows_gates_with_their_reasons() -> None:
    shown = markdown(_summary())
    assert shown.startswith("## latfix diagnose: <code>ranker</code> on cpu — ")
    assert "**Gates: 1 passed, 1 failed, 1 undecided**" in shown
    html = _html(_summary())
    assert html.count("<table>") == 1 and html.count("<tr>") == 4
    assert "<td><code>p99&lt;200ms</code></td>\n<td><strong>FAILED</strong></td>" in html
    assert "about 900 more requests would tell" in html


def test_markdown_of_a_diagnosis(ordinary: Session) -> None:
    document = {**ordinary[1].to_json(), "gates": [{"gate": "p99<1s", "passed": True, "reason": "p99 is 1"}]}
    html = _html(read_summary(document, command="diagnose"))
    assert html.count("<table>") == 3
    for words in ("p99.9", "requests ok", "throughput", "<code>python.gc</code>", "<code>gc.freeze</code>", "named"):
        assert words in html, words
    p99 = ordinary[1].latency_ci95_ms["p99"]
    assert f"[{p99[0]:.0f}, {p99[1]:.0f}]" in html


def test_figures_of_a_slow_service_have_one_unit_and_the_digits_of_its_sentences(ordinary: Session) -> None:
    # GIVEN a p99 of minutes
    diagnosis, bounds = ordinary[1], (98_000.0, 134_000.0)
    latency = dict.fromkeys(diagnosis.latency_ms, 50_000.0) | {"p99": 116_432.0, "p99_9": 2e5, "max": 2e5}
    cause = next(each for each in diagnosis.causes if each.fixes)
    causes = (replace(cause, tail_ms=116_432.0, ci95_ms=bounds),)
    slow = replace(diagnosis, latency_ms=latency, latency_ci95_ms={"p99": bounds}, causes=causes)
    # WHEN it is summarized
    lines = markdown(read_summary(slow.to_json(), command="diagnose")).splitlines()
    # THEN a row has one unit, and the figure that the terminal and the page show
    assert "| p99, ms | 116,432 | [98,000, 134,000] |" in lines
    assert any("mean in the tail, ms" in line for line in lines)
    assert any("| 116,432 | [98,000, 134,000] |" in line for line in lines if "<code>gc.freeze</code>" in line)


def test_a_negative_remainder_is_an_overlap_of_causes(ordinary: Session) -> None:
    diagnosis = ordinary[1]
    assert diagnosis.unexplained_ms < 0
    document = markdown(read_summary(diagnosis.to_json(), command="diagnose"))
    line = next(line for line in document.splitlines() if "unexplained" in line)
    assert f"about 0 (causes overlap by {milliseconds(-diagnosis.unexplained_ms)})" in line
    assert not re.search(r"[-−]\d", document[document.index("cause of the tail") :])


def test_a_refuted_plan_is_no_change(improved: Optimization) -> None:
    steps = tuple(replace(each, status="rejected") for each in improved.steps)
    found = replace(improved, verdict="no_gain", steps=steps, changes={}, rounds=5, proved=("gc.freeze",))
    summary = read_summary(found.to_json(), command="optimize")
    assert summary.answer is not None and summary.sentence == summary.answer.headline
    assert summary.sentence.startswith("No gain: in the final replay, gc.freeze was ")


def test_markdown_of_an_optimization(improved: Optimization) -> None:
    html = _html(read_summary(improved.to_json(), command="optimize"))
    assert html.count("<table>") == 3
    assert "improved" in html and "limit 0.902" in html
    assert "<td>p99, ms</td>" in html and "<strong>×0.238</strong>" in html and "[0.210, 0.280]" in html
    assert "<strong>kept</strong>" in html and "not effective" in html and "needs a CUDA device" in html


def test_results_of_other_commands_give_reports_too(optimization: Optimization) -> None:
    optimized = read_summary(optimization.to_json(), command="optimize")
    _check_schema(_junit(optimized))
    assert _html(optimized).count("<script") == 0
    assert all(line.startswith("::") for line in annotation_lines(optimized))
    summary = read_summary({"schema": "latfix.sweep/1", "workload": "ranker", "notes": ["short"]}, command="report")
    assert (summary.workload, summary.notes, summary.gates, summary.change) == ("ranker", ("short",), (), None)
    _check_schema(_junit(summary))
    assert "short" in _html(summary)


def _elements(html: str) -> list[str]:
    return re.findall("<(?!!--)[a-z0-9/]+", html)


@pytest.mark.parametrize("attack", HOSTILE, ids=range(len(HOSTILE)))
def test_markdown_shows_hostile_texts_literally(attack: str) -> None:
    shown = markdown(_attacked(attack))
    plain = _html(_summary(notes=("a note",), unjudged=("p1<1ms",)))
    html = _html(_attacked(attack))
    if attack:
        assert _elements(html) == _elements(plain)
    assert not re.search(r"@[A-Za-z]", shown) and "://" not in shown and "www." not in shown.lower()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", shown)
    for line in shown.splitlines():
        if line.startswith("|"):
            assert line.count("|") == 4, line


@pytest.mark.parametrize(
    ("name", "joined"),
    [
        ("see #12", "#12"),
        ("owner/model#3", "#3"),
        ("GH-12 and gh-200", "-12"),
        ("a:bug:b", ":bug:"),
        ("@org/team", "@org"),
        ("mailto:someone@example.org", "@example"),
        ("high-12 ranker-7b: 3 ms, python.gc", "\0"),
    ],
)
def test_github_makes_no_reference_of_a_name(name: str, joined: str) -> None:
    """GitHub looks for references in the finished page's text, where a character reference is the sign itself."""
    html = MarkdownIt("commonmark", {"html": True}).render(text(name))
    nodes = [unescape(node) for node in re.split(r"<[^>]*>", html)]
    assert "".join(nodes).strip() == name and (joined != "\0" or text(name) == name), "an ordinary one is plain"
    assert not any(joined in node for node in nodes)


@given(st.text(max_size=60))
def test_any_text_stays_in_its_cell(attack: str) -> None:
    shown = text(attack)
    assert "\n" not in shown and "|" not in shown
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(f"| a |\n| --- |\n| x{shown}x |\n")
    assert html.count("<td>") == 1
    assert not re.search("<(?!!--|/?(?:table|thead|tbody|tr|th|td)>)", html)


def test_annotations_are_the_most_urgent_first() -> None:
    lines = list(annotation_lines(_summary()))
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::notice"]
    assert lines[0] == "::error title=gate p99<200ms failed::p99 is 412 ms, limit 200 ms"
    assert lines[2] == (
        "::notice title=latfix diagnose ranker::"
        "p99 is 412 ms, 3.1x the median; gates: 1 passed, 1 failed, 1 undecided"
    )


def test_annotations_of_a_failed_run() -> None:
    failed = _summary(gates=(), sentence="", failure="the model failed", unjudged=("p99<200ms",))
    assert list(annotation_lines(failed)) == [
        "::error title=latfix diagnose ranker::the model failed",
        "::warning title=gate p99<200ms not evaluated::the model failed",
        "::notice title=latfix diagnose ranker::gates: 1 not evaluated",
    ]


def test_percent_signs_and_colons_are_read_back_as_they_were() -> None:
    line = next(annotation_lines(_summary(gates=(GateRow(gate="a:b,c<1%", outcome="failed", reason="x: 5 %, y"),))))
    assert line == "::error title=gate a%3Ab%2Cc<1%25 failed::x: 5 %25, y"
