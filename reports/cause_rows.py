"""The causes of a diagnosis as rows to show: few enough to read, and still summing to the excess."""

from __future__ import annotations

from dataclasses import dataclass

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import finite
from latfix.results.diagnosis import CauseSummary, Diagnosis

OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One line of the table of causes; the milliseconds are means over tail requests.

    :param cause: the id, or :data:`OTHERS` for the sum of causes too small to list.
    :param count: how many causes the row stands for.
    """

    cause: str
    tail_ms: float
    own_ms: float
    propagated_ms: float
    share: float | None
    ci95_ms: tuple[float, float] | None
    named: bool
    evidence_class: str
    count: int = 1

    @property
    def is_unexplained(self) -> bool:
        """The remainder, which every report shows."""
        return self.cause == UNEXPLAINED


def cause_rows(diagnosis: Diagnosis, *, limit: int) -> list[CauseRow]:
    """Rows by milliseconds, at most ``limit`` listed causes, then the others' sum, then ``unexplained``.

    Named causes are always listed. The rows' ``tail_ms`` sum to the excess as the diagnosis' own entries do.
    """
    entries = [entry for entry in diagnosis.causes if entry.cause != UNEXPLAINED]
    entries.sort(key=lambda entry: -_number(entry.tail_ms))
    floor = 0.005 * abs(_number(diagnosis.excess_ms))
    listed: list[CauseSummary] = []
    small: list[CauseSummary] = []
    for entry in entries:
        worth = entry.named or (len(listed) < limit and abs(_number(entry.tail_ms)) > floor)
        (listed if worth else small).append(entry)
    rows = [_row(entry) for entry in listed]
    small = [entry for entry in small if entry.tail_ms or entry.own_ms or entry.propagated_ms]
    if len(small) == 1:
        rows.append(_row(small[0]))
    elif small:
        rows.append(_sum_of(small, diagnosis.excess_ms))
    rows.append(_unexplained(diagnosis))
    return rows


def cause_total_ms(rows: list[CauseRow]) -> float:
    """What the rows sum to: the tail's excess."""
    return sum(row.tail_ms for row in rows)


def _number(value: float) -> float:
    number = finite(value)
    return 0.0 if number is None else number


def _share(part_ms: float, excess_ms: float) -> float | None:
    return part_ms / excess_ms if _number(excess_ms) > 0 else None


def _row(entry: CauseSummary) -> CauseRow:
    return CauseRow(
        cause=entry.cause,
        tail_ms=_number(entry.tail_ms),
        own_ms=_number(entry.own_ms),
        propagated_ms=_number(entry.propagated_ms),
        share=finite(entry.tail_share),
        ci95_ms=entry.ci95_ms,
        named=entry.named,
        evidence_class=entry.evidence_class,
    )


def _sum_of(entries: list[CauseSummary], excess_ms: float) -> CauseRow:
    total = sum(_number(entry.tail_ms) for entry in entries)
    return CauseRow(
        cause=OTHERS,
        tail_ms=total,
        own_ms=sum(_number(entry.own_ms) for entry in entries),
        propagated_ms=sum(_number(entry.propagated_ms) for entry in entries),
        share=_share(total, excess_ms),
        ci95_ms=None,
        named=False,
        evidence_class="",
        count=len(entries),
    )


def _unexplained(diagnosis: Diagnosis) -> CauseRow:
    for entry in diagnosis.causes:
        if entry.cause == UNEXPLAINED:
            return _row(entry)
    remainder = _number(diagnosis.unexplained_ms)
    return CauseRow(
        cause=UNEXPLAINED,
        tail_ms=remainder,
        own_ms=remainder,
        propagated_ms=0.0,
        share=_share(remainder, diagnosis.excess_ms),
        ci95_ms=None,
        named=False,
        evidence_class="remainder",
    )
