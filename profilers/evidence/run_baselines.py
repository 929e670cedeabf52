"""What is usual in a run: figures that are learned once and hold for all of it.

A large record is attributed piece by piece. Medians, models and prices must then be the run's, not each piece's,
or the pieces' ledgers would count from different references.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Norms:
    """Figures by name; each is computed where it is first asked for, and kept."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def of(self, name: str, learn: Callable[[], T]) -> T:
        """The figure called ``name``; ``learn`` computes it if nothing has yet."""
        if name not in self._known:
            self._known[name] = learn()
        return cast(T, self._known[name])

    def copied(self) -> Norms:
        """What is known so far; what the copy learns stays its own."""
        copy = Norms()
        copy._known.update(self._known)
        return copy

    def __contains__(self, name: str) -> bool:
        return name in self._known
