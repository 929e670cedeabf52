"""Figures as inline SVG: deterministic, colored by the page, unique in their ids."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup

from latfix.reports.charts import run_charts as charts
from latfix.reports.charts.change_charts import front, predicted_against_measured, ratio_forest
from latfix.reports.charts.chart_data import Scatter, Windows
from latfix.reports.charts.inline_svg import INK
from latfix.reports.comparison_rows import Ratio
from latfix.reports.diagnosis_rows import CauseRow
from latfix.reports.plan_rows import FrontRow
from latfix.reports.vocabulary import Severity
from tests.reports.conftest import HOSTILE


def picture(name: str, label: str = "after", *, height: float = 30.0) -> Markup:
    points = Scatter(
        arrival_s=np.array([0.0, 1.0, 2.0]),
        latency_ms=np.array([1.0, 2.0, height]),
        total=3,
        failed_s=np.array([0.5]),
        failed=1,
        rows=np.arange(3),
        failed_rows=np.array([3]),
    )
    window = Windows(edges_s=np.array([0.0, 2.0]), p50_ms=np.array([2.0]), p99_ms=np.array([height]))
    return charts.latency_over_time(name, [charts.Arrivals(label=label, role="after", points=points, windows=window)])


def test_the_same_figure_is_the_same_text_and_another_one_is_not() -> None:
    assert picture("one", height=30.0) == picture("one", height=30.0) != picture("one", height=20.0)


def test_a_picture_is_plain_markup_in_the_colors_of_the_page() -> None:
    text = picture("one")
    ids, others = (set(re.findall(r' id="([^"]+)"', each)) for each in (text, picture("two")))
    assert ids and not ids & others, "two figures never share one"
    references = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert references and references <= ids
    assert not re.search(r"#[0-9a-fA-F]{6}", text)
    assert set(re.findall(r"var\(--([a-z0-9-]+)\)", text)) <= set(INK)
    assert text.count(" h0") == 3, "every request is a dot"
    for forbidden in ("<metadata", "<style", "http", "xmlns", "<?xml", "font-family"):
        assert forbidden not in text


def test_labels_are_text_and_never_formulas() -> None:
    text = picture("one", "$\\frac{1}{$ <b> \x00 推")
    assert "$\\frac{1}{$ &lt;b&gt; " in text


def test_the_callers_settings_are_left_alone() -> None:
    before = matplotlib.rcParams["svg.hashsalt"], matplotlib.rcParams["font.size"]
    picture("one")
    assert (matplotlib.rcParams["svg.hashsalt"], matplotlib.rcParams["font.size"]) == before


def test_the_forest_leaves_out_ratios_without_a_value() -> None:
    ratios: dict[str, tuple[float | None, tuple[float, float] | None]]
    ratios = {"kept": (0.5, (0.4, 0.6)), "skipped": (None, None), "odd": (-1.0, None), "bare": (2.0, None)}
    rows: list[tuple[str, Ratio, Severity]]
    rows = [(name, Ratio(value=value, ci95=bounds), "good") for name, (value, bounds) in ratios.items()]
    text = ratio_forest("steps", rows)
    assert text is not None and ratio_forest("steps", rows[1:3]) is None
    assert "×0.500" in text and [name for name in ratios if f">{name}<" in text] == ["kept", "bare"]


def test_the_backend_in_the_environment_is_ignored() -> None:
    program = (
        "import os; from latfix.reports.charts.inline_svg import draw; draw('n', 'l', 1.0, 1, lambda panels: None)\n"
        "from matplotlib import rc_context; print(os.environ['MPLBACKEND'])"
    )
    env = {**os.environ, "MPLBACKEND": "nonsense"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout) == (0, "nonsense\n"), done.stderr


def test_whiskers_that_go_on_have_an_arrow() -> None:
    def drawn(high: float) -> str:
        return str(ratio_forest("chart", [("gc.freeze", Ratio(value=0.5, ci95=(0.4, high)), "good")]))

    assert drawn(1e6).count("<use") == drawn(5.0).count("<use") + 1, "one mark more"
    assert "×100" not in drawn(1e6), "the axis is that of the points"


def configuration(name: str, predicted: float | None, replayed: float | None, **values: Any) -> FrontRow:
    ratio = Ratio(value=replayed, ci95=None if replayed is None else (replayed * 0.8, replayed * 1.3))
    whole = {"status": "kept", "accuracy": None, "throughput_rps": None, "compute": 0.5, **values}
    return FrontRow(fixes=(name,) if name else (), ratio=ratio, predicted=predicted, **whole)


def test_configurations_that_nothing_beats_have_their_name_and_accuracy() -> None:
    rows = [
        configuration(HOSTILE[:40], 0.5, 0.4, best=True, accuracy=0.9871),
        configuration("b.beaten", 0.7, None, status="foretold"),
        configuration("c.unknown", None, None),
        configuration("", 1.0, 1.0, compute=1.0, status="baseline"),
    ]
    drawn = str(front("front", rows, "p99"))
    assert "accuracy 0.9871" in drawn and ">baseline<" in drawn
    assert "b.beaten" not in drawn and "<script>" not in drawn
    forecast = str(predicted_against_measured("errors", rows, "p99"))
    assert "c.unknown" not in forecast and "b.beaten" not in forecast and "&lt;script&gt;" in forecast
    assert predicted_against_measured("errors", rows[1:], "p99") is None


def test_causes_lead_from_a_quiet_request_to_the_tail() -> None:
    rows = [
        CauseRow(
            cause="a", label="a", tail_ms=30.0, own_ms=10.0, propagated_ms=20.0, share=0.75, ci95_ms=(20.0, 1e9)
        ),
        CauseRow(cause="", label="3 smaller causes", tail_ms=15.0, own_ms=15.0, propagated_ms=0.0, share=0.375),
        CauseRow(cause="unexplained", label="u", tail_ms=-5.0, own_ms=-5.0, propagated_ms=0.0, share=-0.125),
    ]
    drawn = str(charts.cause_waterfall("causes", rows, 60.0, of="slowest 1 %"))
    for words in (">quiet request<", ">60.0<", ">slowest 1 %, mean<", ">100<", ">30.0<", ">shortens the tail<"):
        assert words in drawn
    alone = str(charts.cause_waterfall("causes", rows[:1], 0.0, "step"))
    assert "milliseconds of the step" in alone and ">30.0<" in alone


def test_what_the_sample_cannot_support_is_gray() -> None:
    def drawn(requests: int) -> str:
        slower = np.geomspace(1.0, 1 / requests, 50)
        return str(charts.percentile_curves("curve", [("x", "after", (slower, 1 / slower, requests))]))

    assert "fewer than 10 requests are slower" in drawn(600) and ">p99.99<" in drawn(600)
    assert ">p99.999<" in drawn(1_000_000)
