"""A page of every kind in headless Chromium: no error, no request, and nothing wider than the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reports.html.browser import browse, console, framed, needs_browser, probed, returned
from tests.reports.html.every_page import EVERY_PAGE

pytestmark = needs_browser
#: Parts beyond the right edge, except where a visible edge says so; and tables that scroll. Everything is unfolded.
LOOK = """
for (const node of document.querySelectorAll("details")) node.open = true;
await new Promise((done) => setTimeout(done, 50));
const name = (node) => node.outerHTML.slice(0, 120);
const cut = [...document.querySelectorAll("body *")]
  .filter((node) => !node.parentElement.closest(".scroll, figure, pre, svg") && node.checkVisibility())
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1);
const scrolled = [...document.querySelectorAll(".scroll, figure")].filter((n) => n.scrollWidth > n.clientWidth + 1);
return {
  wide: document.documentElement.scrollWidth - innerWidth,
  cut: cut.map(name),
  scrolled: scrolled.map(name),
  sections: document.querySelectorAll("h2").length,
  chart: !document.getElementById("points") || document.querySelectorAll(".u-over").length === 1,
};
"""


@pytest.mark.parametrize("kind", EVERY_PAGE)
def test_no_error_no_request_and_nothing_is_cut(tmp_path: Path, kind: str) -> None:
    page = tmp_path / f"{kind}.html"
    EVERY_PAGE[kind](page)
    assert page.stat().st_size < 3_000_000
    around = framed(probed(page, LOOK), (400, 800), (1280, 800))
    text, log = browse(around, "--dump-dom", "--window-size=1700,900")
    assert console(log) == []
    seen = returned(text)
    assert set(seen) == {"400", "1280"}
    for width, found in seen.items():
        assert "error" not in found, found
        assert found["sections"] >= 1 and found["chart"]
        assert found["wide"] <= 0 and found["cut"] == [], (width, found)
    if kind != "hostile":
        assert seen["1280"]["scrolled"] == [], "tables and charts fit a window of 1280 px"
