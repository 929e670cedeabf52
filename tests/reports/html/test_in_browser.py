"""Pages in headless Chromium: no error, no request, tables sort and filter, the chart tells of requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from latfix.profilers.drilldown.explain import explain_slowest
from latfix.reports.html.change_page import write_comparison_report
from latfix.reports.html.pages import write_run_report
from latfix.reports.html.recording_page import write_recording_report
from latfix.results.comparison import compare_records
from latfix.results.diagnosis import Source, UnitLedger
from tests.reports.conftest import make_session
from tests.reports.html.browser import browse, console, needs_browser, result

pytestmark = needs_browser

#: What a reader would do, and what it saw.
LOOK = """
const rows = (table) => [...table.tBodies[0].rows].filter((row) => !row.hidden);
const cells = (table, k) => rows(table).map((row) => row.cells[k].innerText);
const table = document.querySelector("#slowest").parentElement.querySelector("table");
const titles = table.tHead.rows[0].cells;
const seen = { dark: matchMedia("(prefers-color-scheme: dark)").matches };
seen.background = getComputedStyle(document.body).backgroundColor;
titles[1].click();
seen.down = cells(table, 1);
titles[1].click();
seen.up = cells(table, 1);
titles[0].click();
seen.ids = cells(table, 0);
const field = table.parentElement.previousElementSibling;
field.value = seen.ids[0];
field.dispatchEvent(new Event("input"));
seen.filtered = cells(table, 0);
seen.still = getComputedStyle(document.querySelector("#over-time svg")).display;
send("mouseenter", 0, 0);
seen.tips = [];
for (let x = 5; x < box.width; x += 10)
  for (let y = 5; y < box.height; y += 15) {
    send("mousemove", x, y);
    if (!tip.hidden) seen.tips.push(tip.textContent);
  }
const [scale, whole] = document.querySelectorAll(".tools button");
seen.scales = [scale.textContent];
scale.click();
seen.scales.push(scale.textContent);
whole.click();
seen.copies = document.querySelectorAll(".copy").length;
seen.scripts = [...document.scripts].length;
seen.width = document.documentElement.scrollWidth - innerWidth;
return seen;
"""


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., Path]:
    """Writes the page of a session."""

    def write(name: str, **values: Any) -> Path:
        page = tmp_path / "report.html"
        write_run_report(page, *make_session(name), **values)
        return page

    return write


@pytest.mark.parametrize(("scheme", "dark"), [(1, False), (0, True)])
def test_a_reader_sorts_filters_and_hovers_in_both_color_schemes(
    report: Callable[..., Path], scheme: int, dark: bool
) -> None:
    seen = result(report("ordinary"), LOOK, f"--blink-settings=preferredColorScheme={scheme}")
    assert "error" not in seen, seen
    assert seen["dark"] is dark
    assert (seen["background"] == "rgb(18, 22, 28)") is dark
    numbers = [float(text.replace(",", "")) for text in seen["down"]]
    assert numbers == sorted(numbers, reverse=True) and len(numbers) == 20
    assert seen["up"] == seen["down"][::-1]
    assert seen["ids"] == sorted(seen["ids"])
    assert seen["filtered"] and all(seen["ids"][0] in name for name in seen["filtered"])
    assert seen["still"] == "none", "the script's chart takes the picture's place"
    assert len(set(seen["tips"])) > 50
    assert all(re.match(r"request-\d+: [\d.,]+ ms at [\d.]+ s\n.*(queue|compute)", tip) for tip in seen["tips"])
    assert sorted(seen["scales"]) == ["linear", "logarithmic"]
    assert seen["copies"] >= 1
    assert seen["width"] <= 0, "the page is not wider than the window"


def test_hostile_texts_run_nothing(report: Callable[..., Path]) -> None:
    text, log = browse(report("hostile"), "--dump-dom")
    assert console(log) == []
    assert "alert(" not in re.sub("(?s)<script.*?</script>", "", text).replace('&lt;script&gt;alert("1")', "")


def test_violations_of_the_policy_are_logged_on_the_console(report: Callable[..., Path]) -> None:
    page = report("ordinary")
    source = page.read_text(encoding="utf-8")
    page.write_text(source.replace("</main>", "<script>document.title = 1</script><img src='x.png'></main>"))
    assert len(console(browse(page, "--dump-dom")[1])) >= 2, "the policy holds, and the test above would see it"


def test_a_point_leads_to_its_story(report: Callable[..., Path]) -> None:
    record, diagnosis = make_session("ordinary")
    page = report("ordinary", stories=explain_slowest(record, diagnosis.ledger))
    look = """
send("mouseenter", 0, 0);
let found = false;
for (let x = 0; x < box.width && !found; x += 4)
  for (let y = 0; y < 120 && !found; y += 6) {
    send("mousemove", x, y);
    found = tip.textContent.includes("its story") && !tip.hidden;
    if (!found) continue;
    send("mousedown", x, y);
    send("click", x, y);
  }
return { found, open: document.querySelectorAll("details[data-request][open]").length === 1 };
"""
    assert result(page, look) == {"found": True, "open": True}


def test_paper_holds_every_column_and_the_folded_parts(tmp_path: Path) -> None:
    """The rules for print, applied to a screen of the width of A4 paper."""
    found = make_session("ordinary")[1]
    name = "service.recommendation-of-products-service"
    causes = {f"{name}-{k}": 100.0 for k in range(6)}
    unit = UnitLedger(id="f" * 32, start_ms=12_345.0, latency_ms=1_234.0, causes_ms=causes)
    source = Source(kind="spans", path="x.json")
    write_recording_report(tmp_path / "recording.html", replace(found, source=source, slowest=(unit,) * 3))
    record = make_session("ordinary")[0]
    write_comparison_report(tmp_path / "report.html", compare_records(record, record), record, record)
    look = """
return { wide: [...document.querySelectorAll("table")].map((t) => t.offsetWidth - t.parentElement.clientWidth),
  folded: [...document.querySelectorAll("details dd")].filter((d) => !d.checkVisibility()).length };
"""
    for page in ("recording.html", "report.html"):
        path = tmp_path / page
        path.write_text(path.read_text(encoding="utf-8").replace("@media print", "@media screen"), encoding="utf-8")
        seen = result(path, look, "--window-size=718,2400")
        assert max(seen["wide"]) <= 0 and seen["folded"] == 0, (page, seen)


def test_both_arms_of_a_comparison_can_be_hidden(tmp_path: Path) -> None:
    base, new = make_session("ordinary")[0], make_session("untrusted")[0]
    write_comparison_report(tmp_path / "report.html", compare_records(base, new), base, new)
    look = """
const buttons = [...document.querySelectorAll(".tools button[aria-pressed]")];
buttons[0].click();
return { names: buttons.map((b) => b.textContent), pressed: buttons.map((b) => b.getAttribute("aria-pressed")) };
"""
    seen = result(tmp_path / "report.html", look)
    assert seen["names"][0].lower().startswith("base") and seen["pressed"][0] == "false"
    assert set(seen["pressed"][1:]) == {"true"}
    assert console(browse(tmp_path / "report.html", "--dump-dom")[1]) == []


@pytest.mark.parametrize("several", [False, True])
def test_a_cause_marks_its_requests_in_the_chart_and_in_the_table(tmp_path: Path, several: bool) -> None:
    record, last = make_session("ordinary")
    page, stories = tmp_path / "report.html", explain_slowest(record, last.ledger)
    if several:
        base = make_session("untrusted")[0]
        write_comparison_report(page, compare_records(base, record), base, record, last=last, stories=stories)
    else:
        write_run_report(page, record, last, stories=stories)
    look = """
const button = document.querySelector("button.marks");
const cause = button.previousElementSibling.textContent;
const table = document.querySelector("table.slowest");
const shown = () => [...table.tBodies[0].rows].filter((row) => !row.hidden);
const black = () => {
  const canvas = document.querySelector(".chart canvas");
  const [r, g, b] = [0x18, 0x21, 0x2d]; // --ink of light pages
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let many = 0;
  for (let k = 0; k < data.length; k += 4)
    many += data[k] === r && data[k + 1] === g && data[k + 2] === b && data[k + 3] === 255;
  return many;
};
const all = shown().length, before = black();
button.click();
await new Promise((done) => setTimeout(done, 50));
const note = document.querySelector(".chart + p");
const seen = { cause, all, pressed: button.getAttribute("aria-pressed"), words: note.textContent };
seen.rows = shown().map((row) => row.innerText);
seen.ink = [before, black()];
button.click();
seen.again = shown().length;
seen.hidden = note.hidden;
return seen;
"""
    seen = result(page, look)
    assert "error" not in seen, seen
    assert seen["pressed"] == "true" and seen["rows"]
    assert all(seen["cause"] in row for row in seen["rows"])
    assert re.match(rf"Marked: [1-9][\d,]* drawn requests with {re.escape(seen['cause'])} among", seen["words"])
    assert seen["ink"][1] > seen["ink"][0] + 50, "rings"
    assert seen["again"] == seen["all"] == 20 and seen["hidden"]


def test_a_selected_time_lists_its_requests_and_counts_the_others(report: Callable[..., Path]) -> None:
    look = """
const table = document.querySelector("table.slowest");
const rows = [...table.tBodies[0].rows];
const drag = (from, to) => {
  send("mousemove", from, 50);
  send("mousedown", from, 50);
  const [clientX, clientY] = [box.left + to, box.top + 50];
  over.dispatchEvent(new MouseEvent("mousemove", { clientX, clientY, movementX: to - from, bubbles: true }));
  document.dispatchEvent(new MouseEvent("mouseup", { clientX, clientY, bubbles: true }));
};
const settled = () => new Promise((done) => setTimeout(done, 50));
drag(box.width * 0.5, box.width);
await settled();
const note = [...document.querySelectorAll("p.small")].find((p) => p.querySelector("button"));
const at = (row) => parseFloat(row.dataset.at);
const seen = { note: note.textContent, hidden: note.hidden };
seen.inside = rows.filter((row) => !row.hidden).map(at);
seen.outside = rows.filter((row) => row.hidden).map(at);
note.querySelector("button").click();
await settled();
seen.all = rows.filter((row) => !row.hidden).length;
return seen;
"""
    seen = result(report("ordinary"), look)
    assert "error" not in seen, seen
    assert seen["inside"] and seen["outside"] and max(seen["outside"]) <= min(seen["inside"])
    assert not seen["hidden"] and f"{len(seen['inside'])} of the 20 slowest requests arrived then" in seen["note"]
    assert f"the other {len(seen['outside'])} arrived at other times" in seen["note"]
    assert seen["all"] == 20


def test_a_link_unfolds_the_story_of_a_slow_request(report: Callable[..., Path]) -> None:
    record, diagnosis = make_session("ordinary")
    page = report("ordinary", stories=explain_slowest(record, diagnosis.ledger))
    look = """
const link = document.querySelectorAll("table.slowest a")[2];
link.click();
return { id: link.previousElementSibling.textContent,
  open: [...document.querySelectorAll("details[data-request][open]")].map((node) => node.dataset.request) };
"""
    seen = result(page, look)
    assert seen["open"] == [seen["id"]]
