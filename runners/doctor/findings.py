"""A constructor for each state of a finding: ``costs("memory.swap", found, costs, change, causes=…)``."""

from __future__ import annotations

from functools import partial

from latfix.results.doctor_finding import Finding, State


def _finding(
    state: State, id: str, found: str, costs: str = "", change: str = "", *, causes: tuple[str, ...] = ()
) -> Finding:
    return Finding(id=id, state=state, found=found, costs=costs, change=change, causes=causes)


ok, costs, missing = partial(_finding, "ok"), partial(_finding, "costs"), partial(_finding, "missing")
note, unknown = partial(_finding, "note"), partial(_finding, "unknown")
