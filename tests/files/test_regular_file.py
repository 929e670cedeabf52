"""Pipes and devices are refused before they are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from latfix.errors import InputError
from latfix.files.regular_file import check_regular


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/full")):
        with pytest.raises(InputError) as caught:
            check_regular(path, "a plan")
        assert caught.value.message == f"{path}: found no regular file; expected a plan"


def test_errors_that_opening_reports_pass(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (tmp_path, tmp_path / "file", tmp_path / "link", tmp_path / "none"):
        check_regular(path, "a plan")
    with pytest.raises(InputError, match="found no regular file; expected rows"):
        check_regular(tmp_path, "rows", folders=False)
    check_regular(tmp_path / "none", "rows", folders=False)
