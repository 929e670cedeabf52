"""Where a run was started from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import latfix.runners.replay.run_origin as origin
from latfix.runners.replay.run_origin import run_origin


def _git(folder: Path, *words: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    subprocess.run(["git", "-C", str(folder), *author, *words], check=True, capture_output=True)


def test_the_commit_of_the_folder_and_whether_it_was_changed(tmp_path: Path) -> None:
    for name in ("clean", "changed"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "workload.toml").write_text("x")
        _git(folder, "init", "-q", "-b", "faster")
        _git(folder, "add", ".")
        _git(folder, "commit", "-qm", "first")
        if name == "changed":
            (folder / "workload.toml").write_text("y")
        found = run_origin(folder)
        assert found["branch"] == "faster" and found["host"]
        assert found["commit"].endswith("+") is (name == "changed")


def test_a_folder_outside_of_any_repository_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "commit" not in run_origin(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/opt/somewhere/bin/latfix", "diagnose", "my ranker"])
    assert run_origin(tmp_path)["command"] == "latfix diagnose 'my ranker'"


def test_what_takes_too_long_is_not_a_clean_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "workload.toml").write_text("x")
    _git(folder, "init", "-q")
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "first")
    known = run_origin(folder)["commit"]
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\ncase "$*" in *status*) exec sleep 60;; esac\nexec {shutil.which("git")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    run = subprocess.run

    def hurried(command: list[str], **how: Any) -> Any:
        return run(command, **{**how, "timeout": how["timeout"] * (0.1 if "status" in command else 30)})

    monkeypatch.setattr(subprocess, "run", hurried)
    origin._revision.cache_clear()
    assert run_origin(folder)["commit"] == f"{known} (changes unknown)"
