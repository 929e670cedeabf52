"""The same record diagnosed at two commits: every key of ``diagnosis.json`` compared.

    python -m benchmarks.profilers.same_diagnosis 76857f2 [HEAD] [--requests 1000000] [--out FILE]

The record of attribution_scale.py is written by this checkout. Each commit is checked out into a worktree of its own,
whose ``latfix report`` diagnoses the record. Adds its findings to ``benchmarks/results/house.json``: how many values
are equal, and each that differs, is missing or is new.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.profilers.attribution_scale import make_record
from benchmarks.result_file import RESULTS, earlier_result, git, write_result

#: Relative difference of numbers that sums in another order explain.
ROUNDING = 1e-9


def main() -> None:
    """Diagnose twice, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "house.json", help="keeps its other results")
    options = parser.parse_args()
    commits = [git("rev-parse", "--short=8", commit) for commit in (options.before, options.after)]
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch) / "record"
        make_record(record, options.requests)
        before, after = (diagnosis(record, commit, Path(scratch)) for commit in commits)
    found = compared(before, after)
    for kind in ("differ", "missing", "new"):
        for path, value in found[kind].items():
            print(f"{kind:<8}{path}: {value}")
    print(f"{found['equal']} values are equal, {len(found['differ'])} differ: {found['by_section']}")
    document = earlier_result(options.out)
    document[f"diagnosis of one record of {options.requests:,} requests, {' and '.join(commits)}"] = found
    write_result(options.out, document | {"commit": commits[1], "uncommitted": False})


def diagnosis(record: Path, commit: str, scratch: Path) -> Any:
    """``diagnosis.json`` of a record, written by ``latfix report`` at a commit."""
    file = scratch / f"{commit}.json"
    with worktree(commit, scratch / commit) as tree:
        environment = {**os.environ, "PYTHONPATH": str(tree), "LATFIX_HISTORY": "off"}
        command = [sys.executable, "-P", "-m", "latfix", "report", str(record), "--json", str(file)]
        subprocess.run(command, env=environment, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
    return json.loads(file.read_text(encoding="utf-8"))


@contextlib.contextmanager
def worktree(commit: str, folder: Path) -> Iterator[Path]:
    """A checkout of a commit beside this one."""
    git("worktree", "add", "--quiet", "--detach", str(folder), commit)
    try:
        yield folder
    finally:
        git("worktree", "remove", "--force", str(folder))


def compared(before: Any, after: Any) -> dict[str, Any]:
    """Two documents by path: how many values are equal; those that ``differ`` (both), are ``missing`` or ``new``.

    ``by_section`` counts those that differ, with the largest relative difference of numbers.
    """
    one, other = dict(values(before)), dict(values(after))
    shared = one.keys() & other.keys()
    differ = {path: [one[path], other[path]] for path in one if path in shared and not same(one[path], other[path])}
    sections: dict[str, dict[str, float]] = {}
    for path, pair in differ.items():
        section = sections.setdefault(path.partition(".")[0].partition("[")[0], {"values": 0, "largest": 0.0})
        section["values"] += 1
        section["largest"] = round(max(section["largest"], distance(*pair)), 4)
    return {
        "equal": len(shared) - len(differ),
        "by_section": sections,
        "differ": differ,
        "missing": {path: value for path, value in one.items() if path not in shared},
        "new": {path: value for path, value in other.items() if path not in shared},
    }


def values(part: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its path; objects of a list by what names them (``cause``, ``name``, ``id``), or by place."""
    if isinstance(part, Mapping) and part:
        for key, each in part.items():
            yield from values(each, f"{path}.{key}".lstrip("."))
    elif isinstance(part, list) and any(isinstance(each, Mapping) for each in part):
        for place, each in enumerate(part):
            name = next((each[key] for key in ("cause", "name", "id") if isinstance(each.get(key), str)), place)
            yield from values(each, f"{path}[{name}]")
    else:
        yield path, part


def same(one: Any, other: Any) -> bool:
    """True if two values are equal, numbers but for rounding."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(map(same, one, other))
    return bool(one == other) or (_numbers(one, other) and distance(one, other) <= ROUNDING)


def distance(one: Any, other: Any) -> float:
    """Relative difference of two numbers, the largest of two lists of numbers; 0 of other values."""
    if isinstance(one, list) and isinstance(other, list):
        return max(map(distance, one, other), default=0.0)
    return float(abs(one - other) / max(abs(one), abs(other), 1e-300)) if _numbers(one, other) else 0.0


def _numbers(*each: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in each)


if __name__ == "__main__":
    main()
