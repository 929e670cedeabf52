"""``<file>.meta.json``: the origin of a converted or synthesized file, stored next to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.errors import InputError, input_error
from latfix.files.regular_file import check_regular
from latfix.files.strict_json import read_json
from latfix.formatting import shown

SCHEMA = "latfix.traffic/1"
#: The key of the Parquet schema metadata that replaces a sidecar.
PARQUET_KEY = b"latfix"
_EXPECTED = f"a sidecar that latfix wrote ({SCHEMA})"
_KINDS = ("int", "float", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """Facts about a traffic file besides its rows.

    :param kinds: ``int``, ``float`` or ``text`` by feature.
    :param metadata: of the traffic that was written.
    :param sha256: of the file that was written; ``None`` if the metadata is inside the file.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sha256: str | None = None

    def to_json(self) -> str:
        """The sidecar's text."""
        content = {
            "schema": SCHEMA,
            "sha256": self.sha256,
            "features": dict(self.kinds),
            "metadata": dict(self.metadata),
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def sidecar_path(path: Path) -> Path:
    """The path of the sidecar of ``path``."""
    return path.with_name(f"{path.name}.meta.json")


def parse_sidecar(text: str, where: Path) -> Sidecar:
    """Parse a sidecar.

    :raises InputError: it is not one, or of a later schema.
    """
    try:
        content = read_json(text)
    except (ValueError, RecursionError) as error:
        raise _refusal(where, "text that is not JSON, or a number that it cannot hold") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise _refusal(where, f"schema {shown(found)}")
    kinds, metadata, sha256 = content.get("features"), content.get("metadata"), content.get("sha256")
    if not isinstance(kinds, dict) or not isinstance(metadata, dict) or not isinstance(sha256, str | None):
        raise _refusal(where, "wrong types", "features and metadata as objects")
    if not all(kind in _KINDS for kind in kinds.values()):
        raise _refusal(where, "a feature of another kind", f"one of {', '.join(_KINDS)} for each feature")
    transforms = metadata.get("transforms", [])
    if not isinstance(transforms, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("transform"), str) for entry in transforms
    ):
        raise _refusal(where, "transforms of another form", 'a list of objects, each with a text "transform"')
    return Sidecar(kinds=kinds, metadata=metadata, sha256=sha256)


def embedded_sidecar(file: Any, where: Path) -> Sidecar:
    """What stands in the place of a sidecar in a file of Parquet; empty if latfix did not write it.

    :raises InputError: it is unreadable.
    """
    from pyarrow.parquet import read_schema

    text = (read_schema(file).metadata or {}).get(PARQUET_KEY)
    return Sidecar() if text is None else parse_sidecar(text.decode(errors="replace"), where)


def _refusal(where: Path, found: str, expected: str = _EXPECTED) -> InputError:
    return input_error(where, None, found, expected, "delete or restore it")


def read_sidecar(path: Path) -> Sidecar | None:
    """The sidecar of the traffic file ``path``, ``None`` if it has none.

    :raises InputError: it exists and is unreadable.
    """
    where = sidecar_path(path)
    try:
        check_regular(where, _EXPECTED)
        text = where.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(where, "an unreadable file") from error
    return parse_sidecar(text, where)
