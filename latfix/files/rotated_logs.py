"""Several files of one log, as rotation leaves them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

#: ``access.log.2.gz``: the number of a rotation, the highest of the oldest file.
_NUMBER = re.compile(r"\.(\d{1,5})(\.gz)?$")
_OTHERWISE_COMPRESSED = {".bz2", ".xz", ".zst", ".lz4"}


def join_command(paths: Sequence[Path]) -> str:
    """A command that joins the files of a text log, the oldest first, and diagnoses the result; empty if none can.

    ``zcat -f`` passes on files that are not compressed.
    """
    if any(path.suffix in _OTHERWISE_COMPRESSED for path in paths):
        return ""
    # The current file has no number and no date; dates ascend.
    ordered = sorted(paths, key=lambda path: (-_rotation(path), not re.search(r"\d", path.name), path.name))
    return f"zcat -f {shlex.join(map(str, ordered))} > joined.log && latfix diagnose joined.log"


def _rotation(path: Path) -> int:
    found = _NUMBER.search(path.name)
    return int(found[1]) if found else 0
