"""Services with planted faults, each in its own process on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SERVICE = Path(__file__).with_name("planted_service.py")


@dataclass(frozen=True)
class Planted:
    """A running service."""

    port: int
    pid: int

    def at(self, path: str = "/predict") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def planted() -> Iterator[Callable[..., Planted]]:
    """Start a service with a fault; it ends after the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(fault: str, *words: str) -> Planted:
        process = subprocess.Popen([sys.executable, str(SERVICE), fault, *words], stdout=subprocess.PIPE, text=True)
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
