"""Services with planted faults, each in its own process on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Planted:
    """A running service."""

    port: int
    pid: int

    def at(self, path: str = "/predict") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


Plant = Callable[..., Planted]


@pytest.fixture
def planted() -> Iterator[Plant]:
    """Start a service with a fault, by default ``planted_service.py``; it ends after the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(fault: str, *words: str, script: str = "planted_service.py") -> Planted:
        command = [sys.executable, str(HERE / script), fault, *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        port, pid = process.stdout.readline().split()
        return Planted(int(port), int(pid))

    yield start
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
