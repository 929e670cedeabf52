"""Files are written whole or not at all, and devices are never replaced."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import pytest

from latfix.files.atomic_write import replacement, write_bytes, write_json, write_text


def _full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    write_text(file, "old")
    write_json(file, {"a": "é"})
    assert json.loads(file.read_text(encoding="utf-8")) == {"a": "é"} and _names(tmp_path) == ["d.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "d.json"
    write_json(file, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"a": math.inf})
    with pytest.raises(RuntimeError), replacement(file) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    monkeypatch.setattr("os.fsync", _full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_bytes(file, b"new")
    assert caught.value.filename == str(file)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_bytes(Path("/dev/full"), b"new")
    assert json.loads(file.read_text()) == {"a": 1} and _names(tmp_path) == ["d.json"]


@pytest.mark.parametrize("old", ["old", None], ids=["to a file", "to no file yet"])
def test_a_link_stays_and_the_file_that_it_names_is_replaced(tmp_path: Path, old: str | None) -> None:
    """As root, a replaced /dev/stdout would be gone for every other program too."""
    file, link = tmp_path / "d.json", tmp_path / "stdout"
    if old is not None:
        file.write_text(old)
    link.symlink_to(file)
    write_text(link, "new")
    assert link.is_symlink() and file.read_text() == "new" and sorted(_names(tmp_path)) == ["d.json", "stdout"]


@pytest.mark.parametrize("path", ["missing/d.json", "."])
def test_no_place_for_a_file(tmp_path: Path, path: str) -> None:
    with pytest.raises(OSError):
        write_text(tmp_path / path, "text")
    assert not list(tmp_path.iterdir())


def test_a_pipe_receives_the_bytes_and_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_text, args=(pipe, "text"))
    writer.start()
    assert pipe.read_text() == "text"
    writer.join()
    assert pipe.is_fifo() and _names(tmp_path) == ["pipe"]
