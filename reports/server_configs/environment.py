"""Environment variables of the service's process, as a shell file."""

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
        ["no environment variable disables huge pages"] if value == "never" else []
    ),
    "env": lambda _value, _settings: [],  # the whole environment is written
}
