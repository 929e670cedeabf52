"""Variables that a service's process must be started with, as a file for a shell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from latfix.reports.server_configs.translation import NO_COUNTERPART, Put, Table


def _threads(value: int, _settings: Mapping[str, Any]) -> Iterator[Put]:
    if value:
        yield Put(("OMP_NUM_THREADS",), str(value))


TABLE: Table = {
    **NO_COUNTERPART,
    "intra_op_threads": _threads,
    "huge_pages": lambda value, _settings: (
        ["no variable forbids huge pages to a process"] if value == "never" else []
    ),
    "env": lambda _value, _settings: [],  # the whole environment is written
}
