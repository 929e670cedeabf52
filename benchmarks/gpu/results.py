"""``gpu.json``: what each part found, when, on which machine and with which versions; calls add to each other's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.findings import write_whole

SCHEMA = "latfix.gpu-benchmarks/1"


class Results:
    """The file of all parts.

    :param file: may be there already, with parts of earlier calls.
    :raises ValueError: it is there and is none of these.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.parts: dict[str, dict[str, Any]] = {}
        if file.exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(document, dict) or document.get("schema") != SCHEMA or "parts" not in document:
                raise ValueError(f"its schema is not {SCHEMA}")
            self.parts = dict(document["parts"])

    def add(self, name: str, entry: Mapping[str, Any]) -> bool:
        """Keep a part's result and write the file; whether it is the one that the file holds now.

        A part that was not begun, or was cut short, takes the place of none that ran to its end.

        :param entry: with ``complete``: it ran to its end, whatever it showed.
        """
        before = self.parts.get(name)
        if before is not None and before["complete"] and not entry["complete"]:
            return False
        self.parts[name] = dict(entry)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.file, {"schema": SCHEMA, "command": "python benchmarks/gpu/run.py", "parts": self.parts})
        return True
