"""Parts of the GPU benchmarks: each rewrites ``DIR/PART.json`` after each measured item.

python -m benchmarks.gpu.parts DIR ... > gpu.json        the parts of several calls as one document
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.commands import Ended, run
from latfix.files.atomic_write import write_text

SCHEMA = "latfix.gpu-benchmarks/2"
_OUTPUT, _TRACE = 6000, 1500
#: A part's process ends its commands this long before its own limit, to write their results.
_GRACE_S = 4.0


class Part:
    """A part's results. Each change is on disk before the next item is measured, so a crash loses nothing.

    :param file: may exist from an earlier call.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> dict[str, Any]:
        """The document; without items if the file does not exist."""
        if not self.file.exists():
            return {"schema": SCHEMA, "part": self.file.stem, "found": {}, "problems": {}, "complete": False}
        document: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return document

    def runs(self, item: str = "") -> Path:
        """A new, empty folder next to the results, for runs that explain them."""
        folder = self.file.with_name("runs") / self.file.stem / item
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    @property
    def found(self) -> dict[str, Any]:
        """Results by item."""
        items: dict[str, Any] = self.read()["found"]
        return items

    def update(self, **values: Any) -> None:
        """Replace fields of the document; values that JSON lacks are written as text."""
        write_text(self.file, json.dumps({**self.read(), **values}, indent=2, default=str) + "\n")

    def put(self, item: str, value: Any) -> Any:
        """Keep an item's result, and return it."""
        self.update(found={**self.found, item: value})
        return value

    def attempt(self, item: str, measure: Callable[[], Any]) -> Any:
        """Measure an item and keep its result, or ``failed`` with the error that it raised."""
        try:
            return self.put(item, measure())
        except Exception as error:  # noqa: BLE001 - other items must still be measured
            trace = "".join(traceback.format_exception(error))[-_TRACE:]
            return self.put(item, {"failed": f"{type(error).__name__}: {error}", "trace": trace})

    def command(self, command: Sequence[str], seconds: float) -> Ended:
        """Run a command and keep how it ended."""
        ended = run(command, seconds)
        self.update(found={**self.found, "exit_code": ended.exit_code, "output": ended.output[-_OUTPUT:]})
        return ended

    def measure(self, module: str, seconds: float) -> dict[str, Any]:
        """Measure in a separate process, so that its memory and device errors do not affect other parts.

        :param module: calls :func:`measure_here`.
        :returns: results by item.
        """
        deadline = time.monotonic() + seconds - _GRACE_S
        ended = run([sys.executable, "-m", module, str(self.file), repr(deadline)], seconds)
        if ended.why:
            self.update(found={**self.found, "cut": ended.why, "output": ended.output[-_OUTPUT:]})
        return self.found

    def check(self, problems: Sequence[str], item: str = "") -> None:
        """Keep objections to the part, or to one item of it; fail if there are any."""
        found = self.found
        lines = [*problems, *([f"its process: {found['cut']}"] if "cut" in found else [])]
        every = {**self.read()["problems"], item: lines}
        cut = any("no time" in line for each in every.values() for line in each)
        self.update(problems=every, complete=not cut)
        assert not lines, "\n".join(lines)


def measure_here(measure: Callable[[Part, float], None]) -> None:
    """Entry of a part's process: measure into the file given on the command line, until its deadline."""
    measure(Part(Path(sys.argv[1])), float(sys.argv[2]))


def no_time(left: float, needed: float) -> dict[str, str]:
    """The result of an item that was not started."""
    return {"skipped": f"no time: {max(left, 0.0):.0f} s were left, it needs {needed:.0f} s at least"}


def lacks(value: Any) -> str:
    """The reason why a result is empty; empty if it is not."""
    if not isinstance(value, dict) or not value:
        return "nothing was found"
    return next((f"{key}: {value[key]}" for key in ("failed", "skipped") if key in value), "")


def each_lacks(found: Mapping[str, Any], items: Sequence[str]) -> list[str]:
    """The items without a result, one line each."""
    return [f"{item}: {reason}" for item in items if (reason := lacks(found.get(item)))]


def merged(folders: Sequence[Path]) -> dict[str, Any]:
    """The parts in some folders as one document.

    If a part is in several folders, the latest is used; an incomplete one never replaces a complete one.
    """
    files = [file for folder in folders for file in sorted(folder.glob("*.json"))]
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    mine = [document for document in documents if isinstance(document, dict) and document.get("schema") == SCHEMA]
    mine.sort(key=lambda document: (document["complete"], document["date"]))
    parts = {document["part"]: document for document in mine}
    return {"schema": SCHEMA, "command": "python -m pytest benchmarks/gpu", "parts": parts}


if __name__ == "__main__":
    json.dump(merged([Path(name) for name in sys.argv[1:]]), sys.stdout, indent=2)
