"""The rendered shape: every awkward shape renders, hostile names do no harm, pictures are the same each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.reports.charts.traffic_picture import draw_shape
from latfix.reports.terminal.traffic import render_shape
from latfix.traffic.parsed_fields import feature_array, fill_ids
from latfix.traffic.schedule import Traffic
from latfix.traffic.summary import TrafficShape, describe, figure, seconds_text
from tests.reports.conftest import printed as console_text
from tests.reports.conftest import unharmed


def shape_of(seconds: list[float], source: str = "t.jsonl", **features: Sequence[object]) -> TrafficShape:
    n = len(seconds)
    traffic = Traffic(
        arrival_ns=np.array([round(second * 1e9) for second in seconds], dtype=np.int64),
        ids=fill_ids([None] * n),
        priority=np.arange(n, dtype=np.int64).astype(np.int8) % 3,
        sessions=["s"] * n,
        deadline_ms=np.full(n, 20.0),
        features={name: feature_array(column) for name, column in features.items()},
        payloads=[None] * n,
        metadata={"source": source, "format": "a", "skipped_lines": 2, "transforms": [{"transform": "limit"}]},
    )
    return describe(traffic)


def printed(shape: TrafficShape, width: int = 100) -> str:
    return console_text(render_shape(shape), width=width)


SHAPES = {
    "one": [0.0],
    "late one": [5.0],
    "together": [1.0] * 80,
    "two": [0.0, 1.0],
    "nanoseconds": [0.0, 1e-9, 3e-9],
    "years": [0.0, 9e8],
    "beat": [float(i) for i in range(100)],
    "growing": [float(i**3) for i in range(100)],
    "nearly a second": [i * 0.9999 for i in range(100)],
    "nearly a thousand": [i * 999.9 for i in range(100)],
}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", SHAPES)
def test_no_line_is_padded_and_no_figure_cut(name: str, width: int) -> None:
    seconds = SHAPES[name]
    tokens = [float(10**k) for k, _ in zip(range(100), seconds, strict=False)]
    text = printed(shape_of(seconds, tokens=tokens, lang=["language of the text"] * len(seconds)), width)
    unharmed(text, width)
    assert "e+03" not in text and "1,000 ms" not in text and "1,000 µs" not in text


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_named_and_drawn(name: str, tmp_path: Path) -> None:
    shape = shape_of(SHAPES[name])
    assert printed(shape).startswith(shape.kind.capitalize())
    draw_shape(shape, tmp_path / "p.svg")
    ElementTree.parse(tmp_path / "p.svg")


def test_an_image_is_reproducible_and_in_the_format_of_its_suffix(tmp_path: Path) -> None:
    shape = shape_of(SHAPES["growing"])
    for name in ("p.svg", "again.svg", "p.png"):
        draw_shape(shape, tmp_path / name)
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "p.svg").read_bytes()
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_the_figures_of_the_shape_are_shown() -> None:
    text = printed(shape_of(SHAPES["beat"], tokens=list(range(100)), lang=["de"] * 60 + ["en"] * 40))
    for part in ("100 in 99 s", "mean 1/s", "2 malformed lines", "high 34", "1, of 100 requests", "p50 20 ms"):
        assert part in text
    for part in ("tokens", "94", "de 60, en 40", "limit", "whole multiples of 1 s"):
        assert part in text


def test_requests_at_once_have_no_rate() -> None:
    text = printed(shape_of(SHAPES["together"]))
    assert "80 at once" in text and "mean 0/s" not in text


def test_the_rate_chart_rises_with_the_rate() -> None:
    seconds = [i / 2 for i in range(100)] + [50 + i / 20 for i in range(1000)]
    chart = printed(shape_of(seconds)).split("requests a second over")[1].split("gaps up to")[0].splitlines()[1:5]
    assert len(chart[0].rstrip()) > 0
    assert chart[0][:20].strip() == ""
    assert chart[0].rstrip().endswith(("█", "▇", "▆", "▅"))


@pytest.mark.parametrize("name", ["$x^{$", "[bold]x[/bold]", "a\x1b[31mb", "<script>&", "é" * 300, "\\frac{}"])
def test_hostile_names_are_shown_literally(name: str, tmp_path: Path) -> None:
    shape = shape_of(SHAPES["beat"], source=name, lang=[name] * 100)
    text = printed(shape)
    assert "\x1b" not in text
    if name.isprintable() and len(name) < 24:
        assert name in text
    draw_shape(shape, tmp_path / "p.svg")
    ElementTree.parse(tmp_path / "p.svg")


def test_a_picture_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    for name in ("p.gif", "missing/p.svg"):
        with pytest.raises(InputError, match="expected"):
            draw_shape(shape_of([0.0, 1.0]), tmp_path / name)
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        draw_shape(shape_of([0.0, 1.0]), tmp_path / "folder.svg")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234.5, "1,234"), (2.5664, "2.57"), (0.0123, "0.0123"), (999.7, "1,000")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9996, "1 s"),
        (0.0009999, "1 ms"),
        (999.6, "1,000 s"),
        (1e-9, "1 ns"),
        (0.0123, "12.3 ms"),
        (12345.6, "12,346 s"),
    ],
)
def test_times_are_rounded_before_their_unit_is_chosen(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
