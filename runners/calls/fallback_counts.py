"""Batches that a converted model was not made for: counted, with some of their shapes, and run by the original."""

from __future__ import annotations

import threading
from typing import Any

#: Different shapes that are kept for the report.
_EXAMPLES = 6


class Outside:
    """Counts for all workers of a service, since its last engine was made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = 0
        self._shapes: list[str] = []

    def add(self, shapes: str) -> None:
        """Count a batch; from any thread."""
        with self._lock:
            self._batches += 1
            if shapes not in self._shapes and len(self._shapes) < _EXAMPLES:
                self._shapes.append(shapes)

    def reset(self) -> None:
        """Forget them: another replay begins."""
        with self._lock:
            self._batches = 0
            self._shapes = []

    def to_json(self) -> dict[str, Any]:
        """How many there were, and some of their shapes."""
        with self._lock:
            return {"batches": self._batches, "shapes": list(self._shapes)}

    def note(self) -> str:
        """What to tell whoever reads the run; empty where there were none."""
        found = self.to_json()
        if not found["batches"]:
            return ""
        return (
            f"{found['batches']} batch(es) of shapes that no engine was built for ran on the original model:"
            f" {'; '.join(found['shapes'])}"
        )
