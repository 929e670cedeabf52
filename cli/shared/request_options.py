"""``--request`` and ``--slowest``: which requests of a run are told of one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfix.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from latfix.results.diagnosis import Diagnosis
    from latfix.results.request_explanation import Story
    from latfix.run_record.chunked_record import RecordFile
    from latfix.run_record.run_record import RunRecord
    from latfix.traffic.schedule import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Stories of the requests asked for by id, and of the slowest."""

    asked: tuple[Story, ...]
    slowest: tuple[Story, ...]
    listed: bool

    def to_json(self) -> list[dict[str, Any]]:
        """``requests_explained``: each request once, those asked for by id first."""
        rows = {story.row for story in self.asked}
        return [story.to_json() for story in (*self.asked, *(s for s in self.slowest if s.row not in rows))]

    def render(self) -> RenderableType:
        """For a terminal."""
        from latfix.reports.terminal.requests import render_stories

        return render_stories(self.asked, self.slowest, listed=self.listed)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillDown:
    """What was asked for; nothing by default."""

    request: Annotated[
        list[str] | None,
        typer.Option("--request", metavar="ID", help="Tell this request's story, entry by entry; may be repeated."),
    ] = None
    slowest: Annotated[
        int | None,
        typer.Option("--slowest", metavar="N", help="List the N slowest requests and what each waited behind."),
    ] = None

    @property
    def requests(self) -> tuple[str, ...]:
        """Ids of the traffic, each once."""
        return tuple(dict.fromkeys(self.request or ()))

    def given(self) -> dict[str, object]:
        """By option what the user gave."""
        return {"--request": self.request, "--slowest": self.slowest}

    def check_slowest(self) -> None:
        """Refuse a number of slowest requests that is out of range.

        :raises InputError: it is.
        """
        if self.slowest is not None:
            from latfix.profilers.drilldown.selection import check_slowest

            check_slowest(self.slowest)

    def check(self, traffic: Traffic) -> None:
        """Refuse ids that a traffic does not have, before it is replayed.

        :raises InputError: naming the nearest ones.
        """
        if self.requests:
            from latfix.profilers.drilldown.selection import check_ids

            check_ids(self.requests, traffic.ids)

    def check_size(self, requests: int) -> None:
        """Refuse runs too large to be laid out at once, which a story needs.

        :raises InputError: stories are asked for, and there are more requests.
        """
        from latfix.run_record.chunked_record import LARGE

        if (self.requests or self.slowest is not None) and requests > LARGE:
            raise InputError(
                f"--request, --slowest: found a run of {requests:,} requests; expected at most {LARGE:,}; "
                "its report lists the slowest, and causes.parquet holds every request's entries"
            )

    def check_record(self, record: RunRecord | RecordFile) -> None:
        """Refuse ids that a record does not have, and records that are too large.

        :raises InputError: naming the nearest ids.
        """
        from latfix.run_record.run_record import RunRecord

        if isinstance(record, RunRecord):
            self.check_size(len(record.requests["index"]))
            self.check(record.traffic)
        else:
            self.check_size(len(record))

    def tell(self, record: RunRecord, diagnosis: Diagnosis) -> Told | None:
        """The stories; ``None`` where nothing was asked for.

        :raises InputError: an id is not in the record's traffic.
        """
        if not self.requests and self.slowest is None:
            return None
        from latfix.profilers.drilldown.explain import tell
        from latfix.profilers.drilldown.selection import choose_ids, choose_slowest

        asked = choose_ids(record, self.requests)
        slowest = choose_slowest(record, self.slowest or 0)
        stories = tell(record, diagnosis.ledger, (*asked, *slowest))
        return Told(asked=stories[: len(asked)], slowest=stories[len(asked) :], listed=self.slowest is not None)
