"""Flame graphs of sampled stacks: widths by slow milliseconds, and nothing that a page would obey."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.reports.charts.flame_graph import flame_graphs, frame_name
from latfix.results.diagnosis import StackTime


def stack(slow_ms: float, typical_ms: float, *frames: str, unit: str = "compute") -> StackTime:
    return StackTime(unit=unit, frames=frames, slow_ms=slow_ms, typical_ms=typical_ms, looks=9)


def rectangles(drawn: str) -> dict[str, tuple[Any, Any, bool]]:
    """Left edge, width, and whether it is red, of each frame by its title."""
    root = ElementTree.fromstring(drawn)
    found = {}
    for group in root.iter("g"):
        title, rectangle = group.find("title"), group.find("rect")
        assert title is not None and rectangle is not None
        edge, width = float(rectangle.attrib["x"]), float(rectangle.attrib["width"])
        found[title.text or ""] = edge, width, "--own" in rectangle.attrib["style"]
    return found


def test_callers_are_as_wide_as_what_they_called() -> None:
    times = [
        stack(30.0, 0.0, "/w/m.py:9 lookup", "/w/m.py:3 forward"),
        stack(10.0, 10.0, "/v/lib/python3.11/site-packages/torch/f.py:7 linear", "/w/m.py:3 forward"),
        stack(50.0, 5.0, "/w/m.py:80 finish", unit="finish"),
    ]
    drawn = flame_graphs(times, "/w")
    assert list(drawn) == ["finish", "compute"], "the most time first"
    assert rectangles(drawn["compute"]) == {
        "slow compute: 40.0 ms in a slow unit, 10.0 ms in a typical one": (0, pytest.approx(999.4), True),
        "m.py:3 forward: 40.0 ms in a slow unit, 10.0 ms in a typical one": (0, pytest.approx(999.4), True),
        "m.py:9 lookup: 30.0 ms in a slow unit, 0 ms in a typical one": (0, pytest.approx(749.4), True),
        "torch/f.py:7 linear: 10.0 ms in a slow unit, 10.0 ms in a typical one": (750, pytest.approx(249.4), False),
    }


@given(st.text(), st.text(min_size=1))
def test_names_from_outside_stay_text(frame: str, home: str) -> None:
    drawn = flame_graphs([stack(5.0, 1.0, frame, f"{home}/x.py:1 {frame}")], home)
    tags = {node.tag for node in ElementTree.fromstring(drawn["compute"]).iter()}
    assert tags == {"svg", "title", "g", "rect", "text"}


def test_files_are_named_from_their_package_on() -> None:
    assert frame_name("/home/me/w/a/model.py:4 f", "/home/me/w/") == "a/model.py:4 f"
    assert frame_name("/usr/lib/python3.11/json/decoder.py:353 raw", "/home/me/w") == "json/decoder.py:353 raw"
    assert frame_name("/opt/x.py:1 f", "") == "/opt/x.py:1 f"
