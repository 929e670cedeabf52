"""Matplotlib figures as inline SVG: deterministic, small, colored by the page, with unique ids.

Figures are drawn with placeholder colors (:data:`INK`), replaced here by CSS variables, so that one drawing works on
light pages, dark pages and paper.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from latfix.formatting import tick, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 10.0
#: Longest tick label or name of a line, in characters.
LABEL = 32

_ROLES: Final = (
    "ink",
    "muted",
    "grid",
    "card",
    "before",
    "after",
    "own",
    "queue",
    "relief",
    "bad",
    *(f"stage-{k}" for k in range(8)),
)
#: Placeholder color of each role of the page's palette.
INK: Final[dict[str, str]] = {role: f"#01fe{k + 16:02x}" for k, role in enumerate(_ROLES)}
_VARIABLES: Final = {color: f"var(--{role})" for role, color in INK.items()}

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")
_COLOR = re.compile("#01fe[0-9a-f]{2}")
_FAMILY = re.compile(r"\s*font-family:[^;]*;")
_FONT = re.compile(r"font:\s*(?:[a-z0-9]+ )*?([\d.]+)px\s*[^;]*;?")
_DOT = re.compile(r"M (\S+ \S+) L \1(?= M|$)")
_LONGEST_LABEL = 200

_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "latfix",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11.0,
    "axes.unicode_minus": True,
    "axes.edgecolor": INK["grid"],
    "axes.labelcolor": INK["muted"],
    "axes.titlecolor": INK["ink"],
    "axes.titlesize": 11.0,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK["grid"],
    "grid.linewidth": 0.6,
    "text.color": INK["ink"],
    "xtick.color": INK["muted"],
    "ytick.color": INK["muted"],
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 10.0,
    "legend.labelcolor": INK["ink"],
    "path.simplify": False,
}


def load_matplotlib() -> None:
    """Import matplotlib with ``MPLBACKEND`` unset: no backend is needed, and an unknown one would raise."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib  # noqa: F401
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


def draw(
    name: str,
    label: str,
    height: float,
    rows: int,
    plot: Callable[..., None],
    *,
    height_ratios: list[float] | None = None,
) -> Markup:
    """SVG of ``rows`` stacked panels, which ``plot`` draws, given the axes of each; ``height`` in inches."""
    load_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        # The browser's fonts have the glyphs that the measuring font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(rows, 1, sharex=rows > 1, height_ratios=height_ratios)
        plot(*np.atleast_1d(axes))
        return inline_svg(figure, name=name, label=label)


def number_axis(axis: Any) -> None:
    """Plain numbers as tick labels, without minor ones."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _position: tick(value)))
    axis.set_minor_formatter(NullFormatter())


def named_rows(axes: Axes, positions: npt.ArrayLike, names: Iterable[str], *, limit: int = LABEL) -> None:
    """Names to the left of horizontal bars."""
    axes.set_yticks(positions, [visible(name, limit=limit) for name in names])
    axes.tick_params(axis="y", labelcolor=INK["ink"])
    axes.grid(visible=False, axis="y")


def label_right(axes: Axes, text: str, x: float, y: float, *, gap: int = 6, weight: str = "normal") -> None:
    """A text to the right of a point."""
    axes.annotate(text, (x, y), (gap, 0), textcoords="offset points", va="center", color=INK["ink"], weight=weight)


def whisker(
    axes: Axes,
    bounds: tuple[float, float],
    y: float,
    within: tuple[float, float],
    *,
    color: str,
    linewidth: float,
    cap: str = "",
) -> tuple[float, float]:
    """Draw an interval, with an arrow where it exceeds ``within``. Returns the drawn ends."""
    low, high = (min(max(bound, within[0]), within[1]) for bound in bounds)
    axes.plot((low, high), (y, y), color=color, linewidth=linewidth, solid_capstyle="round")
    for end, bound, arrow in ((low, bounds[0], "<"), (high, bounds[1], ">")):
        marker = cap if end == bound else arrow
        if marker:
            axes.plot([end], [y], color=color, marker=marker, markersize=7, linestyle="none")
    return low, high


def inline_svg(figure: Figure, *, name: str, label: str) -> Markup:
    """The figure as one ``<svg>`` element.

    :param name: unique on the page; it prefixes every id inside.
    :param label: a description for screen readers.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in root.iter():
        for child in list(parent):
            group = child.tag in (f"{_SVG}defs", f"{_SVG}g")  # matplotlib leaves several empty ones
            empty = group and not len(child) and not (child.text or "").strip()
            if empty or child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SVG)
        _rewrite(node, name)
    view = root.attrib["viewBox"]
    root.attrib = {"viewBox": view, "role": "img", "aria-labelledby": f"{name}-title"}
    title = ElementTree.Element("title", {"id": f"{name}-title"})
    title.text = visible(label, limit=600)
    root.insert(0, title)
    return Markup(re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)))


def _rewrite(node: ElementTree.Element, name: str) -> None:
    attributes: dict[str, str] = {}
    for key, value in node.attrib.items():
        if key == _XLINK:
            attributes["href"] = value.replace("#", f"#{name}-", 1)
        elif key == "id":
            if not re.fullmatch(r"(?:figure|axes|patch|line2d|text|xtick|ytick|matplotlib\.axis|legend).*", value):
                attributes["id"] = f"{name}-{value}"
        elif key == "clip-path":
            attributes[key] = value.replace("url(#", f"url(#{name}-")
        elif key == "style":
            plain = _FAMILY.sub("", _FONT.sub(r"font-size: \1px;", value))
            attributes[key] = _COLOR.sub(lambda match: _VARIABLES[match[0]], plain)
        elif key in ("d", "x", "y", "transform", "points"):
            attributes[key] = _DOT.sub(r"M \1 h0", " ".join(_NUMBER.sub(_rounded, value).split()))
        else:
            attributes[key] = value
    node.attrib = attributes
    if node.text:
        node.text = visible(node.text, limit=_LONGEST_LABEL) if node.text.strip() else None


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
