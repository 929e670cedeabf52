"""The shape of recorded traffic as a picture: rate over time, and the gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latfix.errors import InputError, input_error
from latfix.formatting import counted, visible
from latfix.reports.charts.inline_svg import load_matplotlib
from latfix.traffic.summary import TrafficShape, figure, seconds_text

PICTURE_SUFFIXES = (".svg", ".png")


def check_picture(path: Path) -> None:
    """Check the suffix and the folder of an image file.

    :raises InputError: the suffix is unknown or the folder is missing.
    """
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        raise input_error(path, None, f"suffix {path.suffix!r}", f"one of {', '.join(PICTURE_SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise input_error(path, None, "no such folder", "an existing folder", f"create {path.parent}")


def draw_shape(shape: TrafficShape, path: Path) -> None:
    """Draw the rate over time and the distribution of the gaps into ``path``, SVG or PNG by its suffix.

    :raises InputError: the file cannot be written.
    """
    check_picture(path)
    load_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A fixed salt and no date make the file reproducible; "$" in names must not be parsed as math.
    with rc_context({"svg.hashsalt": "latfix", "text.parse_math": False, "svg.fonttype": "none"}):
        picture = Figure(figsize=(9, 6), layout="constrained")
        FigureCanvasAgg(picture)
        rate_axes, gap_axes = picture.subplots(2, 1)
        _draw_rate(rate_axes, shape)
        _draw_gaps(gap_axes, shape)
        title = f"{visible(shape.source, limit=60) or shape.format}: {shape.kind}, {counted(shape.count, 'request')}"
        picture.suptitle(title, fontsize=11)
        svg = path.suffix.lower() == ".svg"
        try:
            picture.savefig(path, metadata={"Date": None} if svg else None)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(f"{path}: cannot be written ({reason}); expected a writable path") from error


def _draw_rate(axes: Any, shape: TrafficShape) -> None:
    rates = shape.rate.rates
    edges = [index * shape.rate.window_s for index in range(len(rates) + 1)]
    axes.stairs(rates, edges, fill=True, color="#9ecae1")
    axes.axhline(shape.mean_rate, color="#08519c", linewidth=1, label=f"mean {figure(shape.mean_rate)}/s")
    axes.set_xlabel("seconds from the first arrival")
    axes.set(ylabel=f"requests/s ({seconds_text(shape.rate.window_s)} windows)", xlim=(0, edges[-1]))
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", frameon=False)


def _draw_gaps(axes: Any, shape: TrafficShape) -> None:
    gaps = shape.gaps
    axes.set(xlabel="gap between arrivals", ylabel="gaps")
    if gaps is None or not gaps.histogram:
        axes.text(0.5, 0.5, "no gaps above zero", ha="center", va="center", transform=axes.transAxes)
        return
    axes.stairs(gaps.histogram, gaps.edges_s, fill=True, color="#c7e9c0")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.xaxis.set_minor_formatter(lambda _value, _: "")
    low, high = gaps.edges_s[0], gaps.edges_s[-1]
    for label, key in (("p50", "p50"), ("p99", "p99")):
        value = gaps.percentiles[key]
        if low <= value <= high:
            axes.axvline(value, color="#006d2c", linewidth=1)
            axes.text(value, axes.get_ylim()[1] * 0.95, f" {label} {seconds_text(value)}", fontsize=8, va="top")
