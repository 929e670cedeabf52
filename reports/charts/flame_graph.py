"""Flame graphs of sampled stacks: callers above callees, as wide as their milliseconds in a slow unit of work."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from latfix.formatting import significant, visible
from latfix.results.diagnosis import StackTime

_WIDTH, _ROW, _LETTER = 1000.0, 19, 6.6
#: Narrower frames are not drawn.
_NARROWEST = 2.0
#: A frame is red if at least this share of its time is absent from typical units.
_GROWN = 0.5
_INSTALLED = re.compile(r".*/(?:site-packages|dist-packages|lib/python[0-9.]+)/")


@dataclass(slots=True)
class _Frame:
    """A frame below the same callers, with its callees."""

    name: str
    slow_ms: float = 0.0
    typical_ms: float = 0.0
    called: dict[str, _Frame] = field(default_factory=dict)

    def add(self, names: Sequence[str], time: StackTime) -> None:
        """Add a stack's time, its outermost frame first."""
        frame = self
        for name in ("", *names):
            frame = frame.called.setdefault(name, _Frame(name)) if name else frame
            frame.slow_ms += time.slow_ms
            frame.typical_ms += time.typical_ms


def flame_graphs(times: Sequence[StackTime], workload_folder: str) -> dict[str, Markup]:
    """A graph for each kind of unit with sampled slow ones, the one with most time first.

    :param workload_folder: files inside it are named relative to it.
    """
    roots: dict[str, _Frame] = {}
    for time in times:
        if time.slow_ms > 0:
            root = roots.setdefault(time.unit, _Frame(f"slow {time.unit}"))
            root.add([frame_name(frame, workload_folder) for frame in reversed(time.frames)], time)
    return {unit: _graph(unit, root) for unit, root in sorted(roots.items(), key=lambda each: -each[1].slow_ms)}


def _graph(unit: str, root: _Frame) -> Markup:
    drawn = list(_drawn(root, 0.0, 0, _WIDTH / root.slow_ms))
    height = _ROW * (1 + max(depth for _, _, depth, _ in drawn))
    name, label = f"flame-{unit}", f"Python of slow {unit} by sampled stacks"
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{}-title"><title id="{}-title">{}</title>')
    body = Markup("").join(_rectangle(*each) for each in drawn)
    return head.format(int(_WIDTH), height, name, name, label) + body + Markup("</svg>")


def frame_name(frame: str, workload_folder: str) -> str:
    """``model.py:41 Ranker.lookup``: without the machine-specific part of the path."""
    return _INSTALLED.sub("", frame.removeprefix(f"{workload_folder.rstrip('/')}/") if workload_folder else frame)


def _drawn(frame: _Frame, left: float, depth: int, scale: float) -> Iterator[tuple[_Frame, float, int, float]]:
    """Frames with their left edge, depth and width, callers first."""
    yield frame, left, depth, frame.slow_ms * scale
    for each in sorted(frame.called.values(), key=lambda each: -each.slow_ms):
        if each.slow_ms * scale >= _NARROWEST:
            yield from _drawn(each, left, depth + 1, scale)
        left += each.slow_ms * scale


def _rectangle(frame: _Frame, left: float, depth: int, width: float) -> Markup:
    grown = frame.slow_ms - frame.typical_ms >= _GROWN * frame.slow_ms
    title = f"{visible(frame.name, limit=300)}: {significant(frame.slow_ms)} ms in a slow unit, "
    place, _, function = frame.name.rpartition(" ")
    name = f"{function} {place.rpartition('/')[2]}" if depth else frame.name
    words = visible(name.strip(), limit=max(int(width / _LETTER) - 1, 1))
    text = Markup('<text x="{:.1f}" y="{}" font-size="11" style="fill: var(--ink)">{}</text>')
    return Markup(
        '<g><title>{}</title><rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" style="fill: var(--{});'
        ' fill-opacity: 0.45"></rect>{}</g>'
    ).format(
        f"{title}{significant(frame.typical_ms)} ms in a typical one",
        left,
        depth * _ROW,
        max(width - 0.6, 0.4),
        _ROW - 1,
        "own" if grown else "queue",
        text.format(left + 3, depth * _ROW + 13, words) if len(words) > 2 else "",
    )
