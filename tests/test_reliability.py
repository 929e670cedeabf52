"""``docs/reliability.md``: every row of its tables names an existing test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    line
    for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| fault ")
]


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip()[:40] for row in ROWS])
def test_a_row_names_an_existing_test(row: str) -> None:
    found = re.search(r"`(tests/[\w/]+\.py)::(\w+)` \|$", row)
    assert found is not None, "its last column is tests/file.py::test_name"
    assert f"def {found[2]}(" in (ROOT / found[1]).read_text(encoding="utf-8")
