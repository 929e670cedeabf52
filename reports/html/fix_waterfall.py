"""Which fix gave how much: a waterfall of the objective's milliseconds, and the table behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from latfix.formatting import finite, significant
from latfix.reports.before_after import Ratio, items, mapping, prediction_words, read_ratio
from latfix.reports.charts.inline_svg import INK
from latfix.reports.charts.run_charts import draw
from latfix.reports.elements import Column, Content, Html, element, figure, section, table
from latfix.reports.escaping import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REST = "interaction, and the rest of the traffic"
_LABEL = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one fix, or a group replayed together, did to a statistic.

    :param ratio: when it was added; ``adds`` beside all the others at the end, by fix.
    :param predicted: what was foretold of ``ratio``.
    """

    name: str
    before_ms: float
    after_ms: float
    ratio: Ratio | None
    adds: Mapping[str, Ratio]
    predicted: float | None


def read_shares(document: Mapping[str, Any], key: str) -> list[Share]:
    """The entries of ``ablation`` in ``optimization.json`` for a statistic; damaged ones are left out."""
    shares = []
    for entry in (mapping(each) for each in items(document.get("ablation"))):
        before, after = (finite(mapping(entry.get(side)).get(key)) for side in ("before_ms", "after_ms"))
        if before is None or after is None:
            continue
        fixes = [str(fix) for fix in items(entry.get("fixes"))]
        ratio = mapping(entry.get("ratio")).get(key)
        shares.append(
            Share(
                name=" + ".join(fixes) if fixes else REST,
                before_ms=before,
                after_ms=after,
                ratio=None if ratio is None else read_ratio(ratio),
                adds={fix: read_ratio(mapping(each).get(key)) for fix, each in mapping(entry.get("adds")).items()},
                predicted=finite(mapping(entry.get("predicted")).get(key)),
            )
        )
    return shares


def ablation_section(document: Mapping[str, Any]) -> Html | None:
    """The waterfall and its table; ``None`` where nothing was kept."""
    shares = read_shares(document, "p99")
    if not shares:
        return None
    means = read_shares(document, "mean")
    parts: list[Content] = [
        figure(
            waterfall("ablation-chart", shares),
            "p99 from the first settings to the last, fix by fix. Each step is the fix's own ratio on the screening"
            " windows; the last bar is what these do not account for.",
        )
    ]
    columns = [
        Column(title="fix", numeric=False),
        Column(title="p99 when added"),
        Column(title="predicted"),
        Column(title="p99 beside the others"),
        Column(title="mean when added"),
        Column(title="predicted"),
        Column(title="mean beside the others"),
    ]
    rows = [_cells(share, mean) for share, mean in zip(shares, means, strict=True) if share.ratio is not None]
    parts.append(table("What each fix gave", columns, rows))
    parts.append(element("p", prediction_words(document), class_="soft"))
    return section("ablation", "What each fix gave", *parts)


def _cells(p99: Share, mean: Share) -> list[Content]:
    cells: list[Content] = [element("code", p99.name)]
    for share in (p99, mean):
        cells += [
            share.ratio.words("×") if share.ratio is not None else "",
            "" if share.predicted is None else f"×{significant(share.predicted)}",
            "; ".join(
                each.words("×") if len(share.adds) == 1 else f"{fix} {each.words('×')}"
                for fix, each in share.adds.items()
            ),
        ]
    return cells


def waterfall(name: str, shares: Sequence[Share]) -> Html:
    """Bars from the first figure to the last, one a fix."""

    def plot(_figure: Figure, panels: list[Axes]) -> None:
        axes = panels[0]
        count = len(shares) + 2
        position = np.arange(count)[::-1]
        names = ["before", *(share.name for share in shares), "after"]
        axes.barh(position[0], shares[0].before_ms, color=INK["before"], height=0.62)
        for y, share in zip(position[1:-1], shares, strict=True):
            role = "muted" if share.ratio is None else "relief" if share.after_ms <= share.before_ms else "bad"
            low, high = sorted((share.before_ms, share.after_ms))
            axes.barh(y, high - low, left=low, color=INK[role], height=0.62)
            axes.plot((share.before_ms, share.before_ms), (y, y + 1), color=INK["muted"], linewidth=0.8)
            axes.annotate(
                f"{share.after_ms - share.before_ms:+.3g}",
                (high, y),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                color=INK["ink"],
            )
        last = shares[-1].after_ms
        axes.barh(position[-1], last, color=INK["after"], height=0.62)
        for y, value in ((position[0], shares[0].before_ms), (position[-1], last)):
            axes.annotate(
                significant(value),
                (value, y),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                color=INK["ink"],
                weight="bold",
            )
        axes.set_yticks(position, [visible(text, limit=_LABEL) for text in names])
        axes.tick_params(axis="y", labelcolor=INK["ink"])
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, 1.12 * max(max(share.before_ms, share.after_ms) for share in shares))
        axes.set_xlabel("p99, ms")

    return draw(name, "p99 from before to after, fix by fix", 0.4 * (len(shares) + 2) + 0.8, 1, plot)
