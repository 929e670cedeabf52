"""Kernel files in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from latfix.runners.host.kernel_files import System

MakeSystem = Callable[[Mapping[str, str]], System]


@pytest.fixture
def make_system(tmp_path: Path) -> MakeSystem:
    """Writes files, by their absolute path, and returns a system that has them."""

    def make(files: Mapping[str, str]) -> System:
        for path, text in files.items():
            file = tmp_path / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")
        return System(tmp_path)

    return make
