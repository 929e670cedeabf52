"""Writes traffic as JSON Lines, CSV or Parquet, exact to the nanosecond and atomically."""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latfix.errors import InputError, input_error
from latfix.formatting import shown
from latfix.request import PRIORITIES
from latfix.traffic.io.metadata_sidecar import PARQUET_KEY, read_sidecar, sidecar_path
from latfix.traffic.io.stored_schedule import json_text, parquet_bytes, sidecar_bytes, write_file
from latfix.traffic.parsed_fields import NORMAL
from latfix.traffic.schedule import Traffic
from latfix.traffic.value_parsers import NS_PER_S

SUFFIXES = (".jsonl", ".csv", ".parquet")


def check_output(path: Path, source: Path | None = None) -> None:
    """Validate that :func:`write_traffic` may write to ``path``, before any work is done.

    Recorded traffic cannot be recorded again, so only a file that latfix wrote is replaced.

    :param source: the input, which is never replaced.
    :raises InputError: the suffix is unknown, the folder missing or not writable, or ``path`` is a folder, the
        source, or a file that latfix did not write or that was edited since.
    """
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise input_error(path, None, "the file that is read", "another one to write", "name another OUT")
    if path.suffix.lower() not in SUFFIXES:
        raise input_error(path, None, f"suffix {path.suffix!r}", f"one of {', '.join(SUFFIXES)}")
    if path.is_dir():
        raise input_error(path, None, "a directory", "the name of a file to write")
    if not path.absolute().parent.is_dir():
        raise input_error(path, None, "no such folder", "an existing folder", f"create {path.parent}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise input_error(path, None, "a folder that cannot be written", "a writable one")
    if path.exists() and path.stat().st_size and not _written_here(path):  # mktemp makes an empty one
        found = "a file that latfix did not write as it is"
        raise input_error(path, None, found, "a new file", "name another one, or delete it")


def _written_here(path: Path) -> bool:
    if path.suffix.lower() != ".parquet":
        known = read_sidecar(path)
        return known is not None and known.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    from pyarrow import ArrowException
    from pyarrow.parquet import read_schema

    from latfix.files.parquet_reader import arrow_file

    try:
        return PARQUET_KEY in (read_schema(arrow_file(path)).metadata or {})
    except (OSError, ArrowException):
        return False


def write_traffic(traffic: Traffic, path: Path) -> None:
    """Write ``traffic`` in the native format of the suffix: ``.jsonl``, ``.csv`` or ``.parquet``.

    Reading the file gives the same requests to the nanosecond. The metadata goes into the Parquet schema, or
    into ``<file>.meta.json`` next to other files.

    :raises InputError: the file cannot be written, or the format cannot hold a value.
    """
    path = Path(path)
    check_output(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        write_file(path, parquet_bytes(traffic))
        return
    text = "".join(_json_lines(traffic)) if suffix == ".jsonl" else _csv_text(traffic)
    data = _encoded(text, path)
    digest = hashlib.sha256(data).hexdigest()
    sidecar = sidecar_bytes(traffic, digest)  # before the first write, so that an error leaves no file
    write_file(path, data)
    write_file(sidecar_path(path), sidecar)


def _encoded(text: str, path: Path) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise input_error(path, None, "half of a surrogate pair in a text", "text that UTF-8 can hold") from error


def _seconds_text(arrival_ns: int) -> str:
    seconds, nanoseconds = divmod(arrival_ns, NS_PER_S)
    return f"{seconds}.{nanoseconds:09d}"


def _json_lines(traffic: Traffic) -> Iterator[str]:
    features = traffic.feature_values()
    for index, arrival in enumerate(traffic.arrival_ns.tolist()):
        row: dict[str, Any] = {"id": traffic.ids[index]}
        if traffic.priority[index] != NORMAL:
            row["priority"] = PRIORITIES[traffic.priority[index]]
        if traffic.sessions[index] is not None:
            row["session"] = traffic.sessions[index]
        deadline = float(traffic.deadline_ms[index])
        if deadline == deadline:
            row["deadline_ms"] = deadline
        for name, column in features.items():
            if column[index] is not None:
                row[name] = column[index]
        if traffic.payloads[index] is not None:
            row["payload"] = traffic.payloads[index]
        # The number is written as text because a float would lose nanoseconds in long traffic.
        yield f'{{"arrival_s": {_seconds_text(arrival)}, {json_text(row)[1:]}\n'


def _csv_text(traffic: Traffic) -> str:
    features = traffic.feature_values()
    for name in features:
        if name != name.strip():  # readers of CSV, including latfix, strip the header's names
            raise InputError(
                f"csv: found feature name {shown(name)}; expected one that neither begins nor ends with a blank; "
                "write .jsonl or .parquet instead, or rename the feature"
            )
    for name, column in [*features.items(), ("session", traffic.sessions)]:
        if "" in column:
            raise InputError(
                f"csv: found an empty text in {name!r}; expected values that CSV can distinguish from absent ones; "
                "write .jsonl or .parquet instead"
            )
    stream = io.StringIO(newline="")
    # RFC 4180 lines; with "\n" alone the csv module would leave a lone "\r" in a cell unquoted.
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow(["arrival_s", "id", "priority", "session", "deadline_ms", "payload", *features])
    for index, arrival in enumerate(traffic.arrival_ns.tolist()):
        deadline = float(traffic.deadline_ms[index])
        payload = traffic.payloads[index]
        row: list[Any] = [
            _seconds_text(arrival),
            traffic.ids[index],
            PRIORITIES[traffic.priority[index]],
            traffic.sessions[index],
            deadline if deadline == deadline else None,
            None if payload is None else json_text(payload),
        ]
        writer.writerow([*row, *(column[index] for column in features.values())])
    return stream.getvalue()
