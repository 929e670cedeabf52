"""What a part has found so far, written after each item: an item that fails or hangs costs itself alone."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latfix.files.atomic_write import write_text

#: In what is told of an item or a part that time did not allow, or not to its end.
NO_TIME = "no time"
_TRACE = 1500


class Findings:
    """Results by item.

    :param file: is written after each; ``None`` keeps them in memory alone.
    :ivar items: JSON-able.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.items: dict[str, Any] = {}

    def put(self, name: str, value: Any) -> None:
        """Keep an item's result."""
        self.items[name] = value
        if self._file is not None:
            write_whole(self._file, self.items)

    def attempt(self, name: str, measure: Callable[[], Any]) -> Any:
        """Measure an item and keep its result, or ``failed`` with the error that it raised."""
        try:
            value = measure()
        except Exception as error:  # noqa: BLE001 - what the other items find must not be lost with it
            value = failure(error)
        self.put(name, value)
        return value


def failure(error: BaseException) -> dict[str, str]:
    """An error as an item's result."""
    trace = "".join(traceback.format_exception(error))
    return {"failed": f"{type(error).__name__}: {error}", "trace": trace[-_TRACE:]}


def no_time(left: float, needed: float) -> dict[str, str]:
    """The result of what was not begun."""
    return {"skipped": f"{NO_TIME}: {max(left, 0.0):.0f} s were left, it needs {needed:.0f} s at least"}


def lacks(value: Any) -> str:
    """Why a result holds nothing; empty where it does hold something."""
    if not isinstance(value, dict) or not value:
        return "nothing was found"
    for key in ("failed", "skipped"):
        if key in value:
            return f"{key}: {value[key]}" if key == "failed" else f"skipped, {value[key]}"
    return ""


def write_whole(file: Path, document: Any) -> None:
    """Write JSON; what it cannot hold is written as text."""
    write_text(file, json.dumps(document, indent=2, default=str) + "\n")
