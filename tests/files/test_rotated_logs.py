"""Several files of one log are joined by a command, the oldest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from latfix.files.rotated_logs import join_command
from tests.conftest import cli


@pytest.mark.parametrize(
    ("names", "ordered"),
    [
        (["access.log", "access.log.1", "access.log.10.gz", "access.log.2.gz"], [2, 3, 1, 0]),
        (["access.log", "access.log-20260312", "access.log-20260311.gz"], [2, 1, 0]),
    ],
)
def test_the_oldest_file_is_first(names: list[str], ordered: list[int]) -> None:
    listed = " ".join(names[place] for place in ordered)
    command = f"zcat -f {listed} > joined.log && latfix diagnose joined.log"
    assert join_command([Path(name) for name in names]) == command
    assert join_command([Path("a b.log"), Path("c.log.zst")]) == ""


def test_several_files_are_refused_with_that_command(tmp_path: Path) -> None:
    for name in ("access.log", "access.log.1"):
        (tmp_path / name).write_text('{"ts": 1, "latency_ms": 2}\n' * 9)
    first, last = tmp_path / "access.log.1", tmp_path / "access.log"
    words = f"zcat -f {first} {last} > joined.log && latfix diagnose joined.log"
    for arguments in ((str(last), str(first)), (str(tmp_path),)):
        code, _, error = cli("diagnose", *arguments)
        assert code == 2 and words in error
