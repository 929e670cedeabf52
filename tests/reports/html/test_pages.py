"""The HTML reports: whole, self-contained, balanced, and unharmed by hostile texts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.formatting import milliseconds, significant, visible
from latfix.profilers.drilldown.explain import explain_slowest
from latfix.reports.comparison_rows import comparison_change, pairing_words
from latfix.reports.diagnosis_rows import main_causes
from latfix.reports.html.change_page import write_comparison_report, write_optimization_report
from latfix.reports.html.figure_files import figures_of
from latfix.reports.html.pages import without_path, write_run_report
from latfix.reports.html.recording_page import write_recording_report
from latfix.reports.html.sweep_page import write_sweep_report
from latfix.reports.html.trial_page import write_trial_report
from latfix.reports.next_commands import Words
from latfix.reports.plan_rows import front_rows
from latfix.results.comparison import Trial, compare_records, compare_rounds
from latfix.results.diagnosis import Source, StackTime, Window
from latfix.results.optimization import Candidate, Optimization, TriedFix
from latfix.results.sweep import Sweep
from latfix.run_record.run_record import RunRecord
from tests.reports.conftest import HOSTILE, Session, make_session
from tests.results.test_documents import written

VOID = {"meta", "br", "wbr", "hr", "link", "img", "input", "col"}
KNOWN_SCHEMES = re.compile(r"(?:https?|ftp|data|javascript|file):", re.IGNORECASE)


@dataclass
class Page(HTMLParser):
    """What a browser would see."""

    text: str = ""
    open: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    references: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "action", "srcset", "poster", "xlink:href"):
                self.references.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data.replace("\u00a0", " ")


def checked(path: Path) -> Page:
    """The parsed page, after what must hold for every page."""
    source = path.read_text(encoding="utf-8")
    assert len(source.encode()) < 3_000_000
    page = Page()
    page.feed(source)
    page.close()
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.isdisjoint({"link", "iframe", "img", "object", "embed", "base", "form"})
    check_scripts(source)
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert not [a for a in page.attributes if KNOWN_SCHEMES.match(a[2].strip())]
    assert all(target.startswith("#") for target in re.findall(r"url\(\s*['\"]?([^)]*)", source))
    assert "@import" not in source
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", source)
    labelled = [value for _, name, value in page.attributes if name in ("aria-labelledby",)]
    assert labelled
    assert set(labelled) <= set(page.ids)
    assert ("html", "lang", "en") in page.attributes
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source
    for picture in figures_of(source).values():
        ElementTree.fromstring(picture)
        assert "var(--" not in picture
    return page


def check_scripts(source: str) -> None:
    """Only the scripts that latfix brings along are there, the policy names no other, and data hold no markup."""
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', source)
    assert policy.startswith(
        "default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;; base-uri &#39;none&#39;;"
    )
    scripts = re.findall("<script([^>]*)>(.*?)</script>", source, flags=re.DOTALL)
    data = [text for attributes, text in scripts if attributes]
    code = [text for attributes, text in scripts if not attributes]
    assert all(base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy for text in code)
    assert policy.count("sha256-") == len(code) == 1 + len(data) and len(re.findall("<script", source)) == len(
        scripts
    )
    for text in data:
        assert not set("<>&'") & set(text)
        json.loads(text)


def run_page(tmp_path: Path, session: Session) -> Page:
    path = tmp_path / "report.html"
    write_run_report(path, *session)
    return checked(path)


def optimization_text(tmp_path: Path, found: Optimization) -> str:
    """The page of an optimization whose records are gone."""
    path = tmp_path / "report.html"
    write_optimization_report(path, found, diagnosis=None, before=None, after=None)
    return checked(path).text


def test_every_session_makes_a_whole_page(tmp_path: Path, session: Session) -> None:
    page = run_page(tmp_path, session)
    assert {"h1", "table", "caption", "svg", "nav"} <= page.tags
    assert "Where the tail comes from" in page.text
    assert "What the figures mean" in page.text
    assert "unexplained" in page.text


def test_every_optimization_makes_a_whole_page(tmp_path: Path, optimization: Optimization) -> None:
    path, small = tmp_path / "report.html", make_session("partial")
    write_optimization_report(path, optimization, diagnosis=small[1], before=small[0], after=small[0])
    assert "Baseline" in checked(path).text, "there was no final replay"
    replayed = replace(optimization, rounds=3)
    write_optimization_report(path, replayed, diagnosis=small[1], before=small[0], after=small[0])
    assert "Before and after" in checked(path).text
    assert "No record was kept." in optimization_text(tmp_path, optimization)


def test_every_pair_of_sessions_makes_a_whole_comparison(tmp_path: Path, session: Session, hostile: Session) -> None:
    path = tmp_path / "report.html"
    comparison = compare_records(hostile[0], session[0])
    write_comparison_report(path, comparison, hostile[0], session[0])
    text = checked(path).text
    assert "Base and new" in text
    for arm in (comparison_change(comparison).before, comparison_change(comparison).after):
        assert all(words in text for words in arm.latency_words().values())
    assert pairing_words(comparison) in text
    for note in comparison.notes:
        assert visible(note, limit=2000) in text


def test_what_is_of_the_last_round_only_is_marked(tmp_path: Path) -> None:
    base, new = make_session("ordinary")[0], make_session("untrusted")[0]
    path = tmp_path / "report.html"
    comparison = replace(compare_rounds([base, base], [new, new]), notes=("more --rounds would decide it",))
    write_comparison_report(path, comparison, base, new, last=make_session("untrusted")[1])
    text = checked(path).text
    for words in (
        "requests of the last round",
        "Both replays of the last round",
        "Slowest requests of the last round, new",
        "Traffic of the last round, new",
    ):
        assert words in text, words
    assert '<span class="whole">--rounds</span>' in path.read_text(encoding="utf-8")
    write_comparison_report(path, compare_records(base, new), base, new)
    assert "last round" not in checked(path).text


def test_a_recordings_causes_have_an_action(tmp_path: Path, ordinary: Session) -> None:
    found = ordinary[1]
    first, second, *others = found.causes
    causes = (
        replace(first, cause="service.catalog", evidence="41 calls"),
        replace(second, cause="memory.allocator", evidence="7 of 9"),
        *others,
    )
    source = Source(kind="spans", path="x.json")
    write_recording_report(tmp_path / "report.html", replace(found, causes=causes, source=source))
    text = checked(tmp_path / "report.html").text
    advice = text[text.rindex("What to do") :].partition("Latency by")[0]
    assert "Look inside catalog: record its own requests with latfix.record" in advice
    assert "latfix names no setting for it" in advice
    assert "41 calls" not in advice and "7 of 9" not in advice, "the evidence is next to the cause"


def test_the_page_and_its_chart_of_causes_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_run_report(tmp_path / name, *make_session("partial"))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    chart = page.split("causes-chart-title", 1)[1].split("</svg>", 1)[0]
    assert "overlap of the above" in chart and "−" not in chart, "no negative milliseconds"


def test_a_negative_remainder_is_an_overlap_and_exact_only_where_folded(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    assert diagnosis.unexplained_ms < 0
    known: dict[str, Any] = {"requests": 9, "offered_rps": 9.0, "p50_ms": 5.0, "p95_ms": None, "p99_ms": None}
    causes = {"python.gc": 4.0, "unexplained": -1.5}
    windows = tuple(Window(start_s=k, end_s=k + 1.0, causes_ms=causes, **known) for k in (0.0, 1.0))
    text = run_page(tmp_path, (record, replace(diagnosis, windows=windows))).text
    section = text[text.rindex("Where the tail comes from") : text.rindex("What to do")]
    first, _, folded = section.partition("All causes, with exact figures")
    exact = significant(diagnosis.unexplained_ms)
    assert exact.startswith("-") and exact in folded and not re.search(r"[-−]\d", first)
    overlap = significant(sum(row.tail_ms for row in main_causes(diagnosis)) - diagnosis.excess_ms)
    assert f"the listed causes overlap by {overlap} ms" in " ".join(first.split())
    total = significant(diagnosis.excess_ms)
    assert re.search(rf"sum = excess\s*{re.escape(total)}\s*100 %", first) and total in folded
    assert "about 0" in text[text.rindex("Over time") :].partition("Stages")[0]


def test_small_causes_are_one_line_and_folded(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    large, *small = (entry for entry in diagnosis.causes if entry.cause != "unexplained")
    causes = (
        replace(large, tail_ms=80.0, own_ms=80.0, propagated_ms=0.0, tail_share=0.8),
        *(replace(each, tail_ms=2.0, own_ms=2.0, propagated_ms=0.0, tail_share=0.02, named=False) for each in small),
    )
    found = replace(diagnosis, causes=causes, excess_ms=100.0, unexplained_ms=10.0)
    text = run_page(tmp_path, (record, found)).text
    section = text[text.rindex("Where the tail comes from") : text.rindex("What to do")]
    first, _, folded = section.partition("All causes, with exact figures")
    assert f"{len(small)} more causes below 5 %" in first
    assert not [each.cause for each in small if each.cause in first] and large.cause in first
    assert all(each.cause in folded for each in causes)


def test_columns_say_what_they_mean(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    path = tmp_path / "report.html"
    write_run_report(path, record, diagnosis, stories=explain_slowest(record, diagnosis.ledger))
    source = path.read_text(encoding="utf-8")
    for title in ("tail, ms", "own", "queue", "through the queue", "quiet, ms", "known by", "95 % interval"):
        shown = re.escape(title.replace(", ", ",\u00a0"))
        assert re.search(rf'<th[^>]* title="[^"]{{20,}}"[^>]*>{shown}</th>', source), title
    assert re.search('<dt title="[^"]{20,}" class="term">excess of the tail</dt>', source)


def test_a_figure_reads_the_same_in_cards_and_tables(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    known = replace(
        diagnosis,
        latency_ms={**diagnosis.latency_ms, "p50": 21.37, "p99": 553.4},
        latency_ci95_ms={"p50": (21.1, 21.6), "p99": (372.0, 1010.0)},
    )
    text = run_page(tmp_path, (record, known)).text
    cards = text[: text.index("Where the tail comes from")]
    assert "553 ms" in cards and "95 %: 372 to 1,010" in cards and "21.4 ms" in cards
    assert "550 ms" not in text


def test_the_figures_of_the_diagnosis_appear(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    text = run_page(tmp_path, ordinary).text
    assert diagnosis.sentence in text
    for value in diagnosis.latency_ms.values():
        assert significant(value) in text
    for entry in diagnosis.causes:
        assert entry.cause in text
        assert significant(entry.tail_ms) in text
    for row in diagnosis.stages_ms.values():
        assert significant(row["p99"]) in text
    assert milliseconds(diagnosis.excess_ms) in text
    assert "12.3 µs a request, 0.800 % of a core" in text
    assert "p50 0.00310 ms, p99 0.0410 ms, max 0.310 ms" in text
    assert "latfix optimize request" in text
    for known in (record.meta.machine["cpu"], record.meta.versions["torch"], record.meta.started):
        assert known in text


def test_the_slowest_requests_are_listed_with_errors(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    status = record.requests["status"].copy()
    slowest = record.slowest()
    status[slowest[0]] = 1
    index = int(record.requests["index"][slowest[0]])
    failing = replace(
        record, requests={**record.requests, "status": status}, errors={**record.errors, index: "out of memory"}
    )
    text = run_page(tmp_path, (failing, diagnosis)).text
    assert "out of memory" in text
    for row in slowest:
        assert record.traffic.ids[int(record.requests["index"][row])] in text


def test_slowest_rows_leave_warm_up_out_and_are_in_order(ordinary: Session) -> None:
    record = ordinary[0]
    latency = record.requests["latency_ns"].copy()
    latency[0] = 10**15
    assert record.requests["warmup"][0] == 1
    rows = replace(record, requests={**record.requests, "latency_ns": latency}).slowest()
    assert 0 not in rows
    assert (np.diff(latency[rows]) <= 0).all()
    assert len(rows) == 20


def test_a_partial_run_is_marked(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    meta = replace(record.meta, scheduled=2005)
    text = run_page(tmp_path, (replace(record, partial=True, meta=meta), diagnosis)).text
    assert "Partial run" in text
    assert "5 scheduled but not recorded" in text
    assert "Partial run" not in run_page(tmp_path, ordinary).text


def test_the_page_of_an_optimization_shows_steps_gates_and_plan(
    tmp_path: Path, improved: Optimization, ordinary: Session
) -> None:
    path = tmp_path / "report.html"
    found = replace(improved, rounds=5, changes={"max_batch_size": (8, 1)})
    write_optimization_report(path, found, diagnosis=ordinary[1], before=ordinary[0], after=ordinary[0])
    text = checked(path).text
    first = text.partition("figure")[0]
    assert "Improved: p99 412 → 98.0 ms, 4.2 times faster" in first
    for words in ("between 3.6 and 4.8 times faster", "1 of 3 gates failed", "p99<=baseline*0.2 failed: 0.238"):
        assert words in first, "the first screen"
    assert text.index("max_batch_size") < text.rindex("What was tried")
    for step in improved.steps:
        assert step.fix in text and step.reason in text
    for gate in improved.gates:
        assert gate.gate.text in text
    assert "98 ms" in text.partition("Gates and their outcome")[2].partition("Settings that the plan")[0]
    assert "undecided" in text
    assert "latfix diagnose request --plan plan.toml" in text


def test_a_large_run_is_a_small_page_that_names_the_sample_size(
    tmp_path: Path, large: RunRecord, ordinary: Session
) -> None:
    text = run_page(tmp_path, (large, ordinary[1])).text
    assert re.search(r"[\d,]+ of 199,\d{3} requests are drawn: the slowest", text)


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path, ordinary: Session) -> None:
    target = tmp_path / "nowhere" / "report.html"
    with pytest.raises(InputError, match=r"report\.html: cannot be written") as caught:
        write_run_report(target, *ordinary)
    assert "\n" not in caught.value.message
    target = tmp_path / "report.html"
    target.mkdir()
    with pytest.raises(InputError):
        write_run_report(target, *ordinary)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"], "no litter"


def test_the_first_card_is_the_judged_figure(tmp_path: Path, improved: Optimization) -> None:
    for judged, cards in (("p99", ["p99", "p50", "max"]), ("mean", ["mean", "p99", "p50"])):
        optimization_text(tmp_path, replace(improved, rounds=5, judged=judged))
        source = (tmp_path / "report.html").read_text(encoding="utf-8")
        shown = re.findall(r"<dt[^>]*>([^<]*)</dt>", source[source.index('<dl class="cards') :])
        assert shown[:3] == cards


def test_the_effect_of_each_fix_is_drawn_and_listed(tmp_path: Path, improved: Optimization) -> None:
    estimate = {key: {"value": 0.5, "ci95": [0.45, 0.55]} for key in ("mean", "p99")}
    share = {
        "fixes": ["<script>x</script>", "gc.freeze"],
        "before_ms": {"mean": 40.0, "p99": 160.0},
        "after_ms": {"mean": 20.0, "p99": 80.0},
        "ratio": estimate,
        "adds": {"gc.freeze": estimate},
        "predicted": {"mean": 0.55, "p99": 0.45},
    }
    rest = {"fixes": [], "before_ms": share["after_ms"], "after_ms": share["after_ms"], "ratio": None}
    text = optimization_text(tmp_path, Optimization.from_json({**improved.to_json(), "ablation": [share, rest]}))
    assert "<script>x</script> + gc.freeze" in text and "×0.450" in text and "×0.500 [0.450, 0.550]" in text
    assert "interaction of fixes" in text and "Effect of each fix" in text
    assert "p99 share" in text and "measured all fixes together" in text, "no fix was replayed when it was added"


def test_a_p99_among_lost_requests_is_not_drawn_and_the_mean_is(tmp_path: Path, improved: Optimization) -> None:
    estimate = {"mean": {"value": 0.5, "ci95": [0.45, 0.55]}, "p99": {"value": None, "ci95": None, "lost": True}}
    lost: dict[str, Any] = {
        "fixes": ["gc.freeze"],
        "before_ms": {"mean": 40.0, "p99": None, "p99_at_least": 35.8},
        "after_ms": {"mean": 20.0, "p99": None},
        "ratio": estimate,
        "adds": None,
        "predicted": None,
    }
    for mean, drawn in ((40.0, True), (None, False)):
        lost["before_ms"]["mean"] = mean
        text = optimization_text(tmp_path, Optimization.from_json({**improved.to_json(), "ablation": [lost]}))
        assert ("mean from before to after, fix by fix" in text) is drawn
        assert "p99 from before to after" not in text and "Effect of each fix" in text


def test_skipped_fixes_are_listed_separately_with_their_reason(tmp_path: Path, improved: Optimization) -> None:
    tried = TriedFix(fix="gc.freeze", status="kept", reason="p95 x0.5", verified="8 objects frozen")
    skipped = TriedFix(fix="batch.window", status="skipped", reason="there is no batch window")

    def text(*steps: TriedFix) -> str:
        return optimization_text(tmp_path, replace(improved, steps=steps))

    first, _, second = text(skipped, tried).partition("Not tried")
    assert "8 objects frozen" in first and "no batch window" not in first
    assert "no batch window" in second
    assert "in which they were tried" not in text(skipped)
    assert "Not tried" not in text(tried)


def test_nothing_kept_is_no_change_and_names_the_next_step(tmp_path: Path, improved: Optimization) -> None:
    seen = Candidate(fixes=("batch.size",), settings={}, status="foretold", predicted={"p99": 0.5}, compute=0.7)
    found = replace(improved, verdict="no_gain", changes={}, rounds=0, after=improved.before, candidates=(seen,))
    text = optimization_text(tmp_path, found)
    assert "No fix is proved to help: p99 stays 412 ms" in text
    assert "412 → 412" not in text and "[1.00, 1.00]" not in text
    assert "batch.size: p99 2.0 times faster (predicted, not replayed)" in text
    assert "latfix optimize ranker --fix batch.size" in text and "The plan changes nothing." in text


def test_each_configuration_has_its_ratio_over_the_baseline(improved: Optimization) -> None:
    final = improved.ratio["p99"]
    half = replace(final, value=0.5, lo=0.4, hi=0.6)
    steps = [("batch.size",), ("batch.size", "host.priority"), ("batch.size", "host.priority", "gc.freeze")]
    status = ["kept", "undecided", "kept"]
    seen = tuple(
        Candidate(fixes=fixes, settings={}, status=each, replayed={"p99": half})
        for fixes, each in zip(steps, status, strict=True)
    )
    ratios = {row.fixes: row.ratio for row in front_rows(replace(improved, candidates=seen, rounds=3))}
    assert ratios[steps[0]].value == 0.5 and ratios[steps[0]].ci95 == (0.4, 0.6)
    assert ratios[steps[1]].value == 0.25 and ratios[steps[1]].ci95 is None
    assert ratios[steps[2]].value == final.value


@pytest.mark.parametrize("folder", ["/home/someone/services/my ranker", "/home/some one/services/my ranker"])
def test_a_command_on_a_page_has_no_path_of_the_machine(tmp_path: Path, ordinary: Session, folder: str) -> None:
    record, diagnosis = ordinary
    meta = replace(record.meta, workload_folder=folder, entry="workload:Ranker")
    text = run_page(tmp_path, (replace(record, meta=meta), diagnosis)).text
    assert "latfix optimize 'my ranker'" in text.partition("Where the tail comes from")[0]
    assert "/home" not in text.partition("workload_folder")[0]
    words = Words(f"{shlex.quote(folder)} --traffic {shlex.quote(f'{folder}/day 1.jsonl')}")
    assert without_path(words) == "'my ranker' --traffic 'day 1.jsonl'"


def test_an_objective_without_a_column_of_its_own_has_a_page(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    found = replace(diagnosis, percentile=97.0, latency_ms={**diagnosis.latency_ms, "p97": 77.7})
    text = run_page(tmp_path, (record, found)).text
    assert "The slowest 3 % of requests take" in text and "p50" in text


def test_stacks_that_no_slow_unit_had_are_no_section(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    never = StackTime(unit="compute", frames=("m.py:3 forward",), slow_ms=0.0, typical_ms=1.0, looks=3)
    text = run_page(tmp_path, (record, replace(diagnosis, stacks=(never,)))).text
    assert "Slow lines of code" not in text


def test_what_is_not_known_of_latfix_itself_is_not_claimed(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    text = run_page(tmp_path, (record, replace(diagnosis, dispatch_ms={}, overhead={}))).text
    assert "Replay lag" not in text and "Cost of latfix" not in text and "reliable percentiles" not in text


def test_a_trial_has_each_idea_with_its_ratio_and_settings(tmp_path: Path) -> None:
    found = Trial.from_json(written("trial"))
    idea = found.ideas[0]
    failed = replace(idea, name=HOSTILE, failure=HOSTILE, comparison=None, settings={HOSTILE: HOSTILE})
    write_trial_report(tmp_path / "report.html", replace(found, ideas=(idea, failed), notes=(HOSTILE,)))
    page = checked(tmp_path / "report.html")
    assert idea.comparison is not None
    assert f"×{significant(idea.comparison.ratio['p99'].value)}" in page.text
    assert "Best idea: precision=bf16" in page.text and "precision = bf16" in page.text and "failed" in page.text
    empty = replace(found, ideas=(failed,), summary=None, failure="killed", rounds=0)
    write_trial_report(tmp_path / "report.html", empty)
    assert "No idea was replayed" in checked(tmp_path / "report.html").text


COMMAND = "latfix diagnose 'my service' --out /home/someone/runs/today --plan=/tmp/plans/plan.toml http://host/a/b"
ORIGIN = {"started": "2026-03-04T05:06:07+00:00", "host": "machine-7", "command": COMMAND, "commit": "abc123+"}


def test_every_page_names_when_where_and_how_it_was_made(tmp_path: Path, ordinary: Session) -> None:
    """The command without the folders of the machine; what is not known is left out."""
    record, diagnosis = ordinary
    path, pages = tmp_path / "report.html", {}

    def page(name: str) -> None:
        found = re.search('<p class="facts">(.*?)</p>', path.read_text(encoding="utf-8"), re.DOTALL)
        assert found is not None
        pages[name] = html.unescape(re.sub("<[^>]*>", "", found[1]))

    meta = replace(record.meta, origin={name: words for name, words in ORIGIN.items() if name != "started"})
    write_run_report(path, replace(record, meta=replace(meta, started=ORIGIN["started"])), diagnosis)
    page("run")
    source = Source(kind="spans", path="/data/of/someone/trace.json", origin=ORIGIN)
    write_recording_report(path, replace(diagnosis, source=source))
    page("recording")
    write_sweep_report(path, replace(Sweep.from_json(written("sweep")), origin=ORIGIN))
    page("sweep")
    write_trial_report(path, replace(Trial.from_json(written("trial")), origin=ORIGIN))
    page("trial")
    for facts in pages.values():
        assert f"{ORIGIN['started']} ·" in facts and "host machine-7 · commit abc123+" in facts
        typed = "command latfix diagnose 'my service' --out today --plan=plan.toml http://host/a/b"
        assert typed in facts and "/home" not in facts and "/tmp" not in facts and "/data" not in facts
    assert "trace.json" in pages["recording"]
    write_trial_report(path, Trial.from_json(written("trial")))
    page("trial")
    assert "host" not in pages["trial"] and "command" not in pages["trial"]


def test_a_command_that_was_recorded_in_part_has_no_folder_either(tmp_path: Path, ordinary: Session) -> None:
    record, diagnosis = ordinary
    cut = replace(record.meta, origin={"command": "latfix diagnose x --out /home/someone/runs 'and the re"})
    text = run_page(tmp_path, (replace(record, meta=cut), diagnosis)).text
    assert "command latfix diagnose x --out runs" in text
