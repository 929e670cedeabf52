"""``--request`` and ``--slowest``: requests to explain one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.errors import InputError

if TYPE_CHECKING:
    from latfix.results.diagnosis import Diagnosis
    from latfix.results.request_explanation import Story
    from latfix.run_record.chunked_record import RecordFile
    from latfix.run_record.run_record import RunRecord
    from latfix.traffic.schedule import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillDown:
    """Single requests."""

    request: Annotated[
        list[str] | None,
        typer.Option("--request", metavar="ID", help="Explain this request entry by entry; may be repeated."),
    ] = None
    slowest: Annotated[
        int | None,
        typer.Option("--slowest", metavar="N", help="List the N slowest requests and what each waited behind."),
    ] = None

    @property
    def requests(self) -> tuple[str, ...]:
        """Requested ids, each once."""
        return tuple(dict.fromkeys(self.request or ()))

    def check_slowest(self) -> None:
        """Check the number of slowest requests.

        :raises InputError: it is out of range.
        """
        if self.slowest is not None:
            from latfix.profilers.drilldown.selection import check_slowest

            check_slowest(self.slowest)

    def check(self, traffic: Traffic) -> None:
        """Check that the traffic has the ids, before it is replayed.

        :raises InputError: it does not; names the nearest ids.
        """
        if self.requests:
            from latfix.profilers.drilldown.selection import check_ids

            check_ids(self.requests, traffic.ids)

    def check_size(self, requests: int) -> None:
        """Check that the run fits into memory, which stories need.

        :raises InputError: stories are requested, and the run is too large.
        """
        from latfix.run_record.chunked_record import LARGE

        if (self.requests or self.slowest is not None) and requests > LARGE:
            raise InputError(
                f"--request, --slowest: found a run of {requests:,} requests; expected at most {LARGE:,}; "
                "its report lists the slowest, and causes.parquet has the entries of every request"
            )

    def check_record(self, record: RunRecord | RecordFile) -> None:
        """Check that the record has the ids and is small enough.

        :raises InputError: it is not; names the nearest ids.
        """
        from latfix.run_record.run_record import RunRecord

        if isinstance(record, RunRecord):
            self.check_size(len(record.requests["index"]))
            self.check(record.traffic)
        else:
            self.check_size(len(record))

    def explain(
        self, record: RunRecord, diagnosis: Diagnosis
    ) -> tuple[tuple[Story, ...], tuple[Story, ...] | None] | None:
        """Stories of the ids, and of the slowest requests or ``None``; ``None`` if neither was requested.

        :raises InputError: an id is not in the record's traffic.
        """
        if not self.requests and self.slowest is None:
            return None
        from latfix.profilers.drilldown.explain import tell
        from latfix.profilers.drilldown.selection import choose_ids, choose_slowest

        ids = choose_ids(record, self.requests)
        stories = tell(record, diagnosis.ledger, (*ids, *choose_slowest(record, self.slowest or 0)))
        count = len(ids)
        return stories[:count], None if self.slowest is None else stories[count:]
