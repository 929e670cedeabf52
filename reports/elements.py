"""HTML built from values, so that a text from outside cannot become markup.

Every function takes plain texts, which are escaped, or :class:`Html`, which is not.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from latfix.reports.escaping import visible

_VOID = frozenset({"br", "hr", "meta", "col"})


@dataclass(frozen=True, slots=True)
class Html:
    """Markup that is already safe."""

    text: str


Content = Html | str


def escaped(text: object, *, limit: int = 2000) -> str:
    """A text from outside as HTML text or attribute value."""
    return html.escape(visible(text, limit=limit), quote=True)


def joined(parts: Iterable[Content]) -> Html:
    """Parts one after the other."""
    return Html("".join(part.text if isinstance(part, Html) else escaped(part) for part in parts))


def element(tag: str, /, *children: Content, **attributes: str | int | None) -> Html:
    """One element. A trailing underscore is dropped from attribute names (``class_``), inner ones become dashes.

    Attributes whose value is ``None`` are left out.
    """
    pairs = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Html(f"<{tag}{pairs}>")
    return Html(f"<{tag}{pairs}>{joined(children).text}</{tag}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; ``numeric`` ones are aligned to the right."""

    title: str
    numeric: bool = True


def table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Content]], *, class_: str = "") -> Html:
    """A table whose first cell in every row is the row's header.

    :param class_: classes of the table; a row whose first cell starts a group needs none.
    """
    head = [element("th", c.title, scope="col", class_="num" if c.numeric else None) for c in columns]
    body = []
    for row in rows:
        cells = [element("th", row[0], scope="row")]
        for column, value in zip(columns[1:], row[1:], strict=True):
            cells.append(element("td", value, class_="num" if column.numeric else None))
        body.append(element("tr", *cells))
    content = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_=class_ or None,
    )
    return element("div", content, class_="scroll", tabindex="0", role="group", aria_label=caption)


def section(anchor: str, title: str, *children: Content) -> Html:
    """A section of the page with its heading; ``anchor`` is unique on the page."""
    return element("section", element("h2", title, id=anchor), *children, aria_labelledby=anchor)


def figure(drawing: Html, caption: str) -> Html:
    """A drawing with its caption."""
    return element("figure", drawing, element("figcaption", caption))
