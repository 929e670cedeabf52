"""The file of a result: what was measured, when, at which commit, on which machine.

python -m benchmarks.result_file FILE latfix COMMAND …     run a command of latfix, and keep its document
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latfix.files.atomic_write import write_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_ORIGIN = ("date", "commit", "commit_from", "uncommitted", "machine")
_CODE = (":(top)", ":(exclude,top)benchmarks/results", ":(exclude,top,glob)**/*.md")


def git(*words: str) -> str:
    """Output of a git command in this repository.

    :raises subprocess.CalledProcessError: it failed.
    """
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> dict[str, Any]:
    try:
        commit = git("rev-parse", "--short=8", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *_CODE)
    except (OSError, subprocess.CalledProcessError):  # a copy without its repository
        return {"commit": None}
    return {"commit": commit} | ({"uncommitted": True} if changed else {})


#: When the process started: the code may change while it measures.
_COMMIT = _commit()


def origin(device: str = "cpu") -> dict[str, Any]:
    """Where a measurement that is made now comes from.

    :param device: the torch device that was measured.
    :returns: ``date``, ``commit`` (``None`` outside a repository), ``uncommitted`` if the code differed from it,
        ``machine``.
    """
    from latfix.runners.replay.runner_main import machine

    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": date, **_COMMIT, "machine": machine(device)}


def write_result(file: Path | None, document: Mapping[str, Any], *, levels: int = 0) -> None:
    """Write a document after its origin.

    :param file: nothing is written if it is ``None``.
    :param document: may contain its own ``machine``.
    :param levels: write each entry of this many outer levels on one line; 0: each value.
    """
    if file is not None:
        whole = origin() | dict(document)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, (_in_lines(whole, levels) if levels else json.dumps(whole, indent=2)) + "\n")


def earlier_result(file: Path | None) -> dict[str, Any]:
    """The document of earlier calls, to be continued, with their origins under ``earlier``; empty without a file."""
    if file is None or not file.exists():
        return {}
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    past = {key: document.pop(key) for key in _ORIGIN if key in document}
    return {**document, "earlier": [*document.get("earlier", []), past]}


def latfix_command(*words: str) -> list[str]:
    """A command of this checkout's latfix."""
    return [sys.executable, "-m", "latfix", *words]


def _in_lines(value: Any, levels: int, indent: str = "") -> str:
    if not levels or not isinstance(value, dict) or not value:
        return json.dumps(value)
    inner = indent + " "
    lines = [f"{inner}{json.dumps(key)}: {_in_lines(each, levels - 1, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(lines) + "\n" + indent + "}"


def main(words: Sequence[str]) -> int:
    """Run a command of latfix with ``--json``, and write its document with its origin."""
    if len(words) < 3 or words[1] != "latfix":
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        document = Path(scratch) / "document.json"
        ended = subprocess.run([*latfix_command(*words[2:]), "--json", str(document)], check=False).returncode
        if document.exists():
            write_result(Path(words[0]), json.loads(document.read_text(encoding="utf-8")))
    return ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
