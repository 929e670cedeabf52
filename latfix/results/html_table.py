"""A result as a notebook shows it: a line, warnings, and a table. Every text in it is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(heading: str, notes: Iterable[str], columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A heading, a list of notes and a table, as HTML."""
    warned = "".join(f"<li>{escape(note)}</li>" for note in notes)
    head = "".join(f"<th>{escape(title)}</th>" for title in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    listed = f"<ul>{warned}</ul>" if warned else ""
    return (
        f"<div><p><strong>{escape(heading)}</strong></p>{listed}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
