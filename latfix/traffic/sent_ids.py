"""The ids under which a run sends its requests to a service, by which the service's own recording is joined."""

from __future__ import annotations

import hashlib
import re

_UNUSUAL = re.compile(r"[^!-~]")
_LONGEST = 128


def sent_id(run: str, planned: str) -> str:
    """The ``X-Request-Id`` of a request: its id in the traffic and the run, so that no other run uses it.

    :param run: the run's own word, as in ``http.run`` of ``run.json``.
    """
    return f"{_UNUSUAL.sub('_', planned)[:_LONGEST]}-{run}"


def trace_of(run: str, planned: str) -> tuple[str, str]:
    """The ids of a request's trace and of its client's span, in hexadecimal digits (W3C Trace Context)."""
    digits = hashlib.blake2b(f"{run}\0{planned}".encode(), digest_size=24).hexdigest()
    return digits[:32], digits[32:]
