"""A background thread of latfix that observes or writes while a service runs."""

from __future__ import annotations

import threading
from typing import Self


class OwnThread:
    """Runs its thread between entering and leaving the context.

    :param name: of the thread, after ``latfix-``.
    :ivar cpu_ns: CPU time of the thread.
    """

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"latfix-{name}", daemon=True)
        self.cpu_ns = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
