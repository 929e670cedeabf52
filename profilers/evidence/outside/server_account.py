"""What a service behind an address itself says about the time of its requests.

Its own recording has a row for each request, joined by its id. Its metrics are sums over requests: between two
readings they give the mean of the requests that ended then, not each one's own figure. The requests share it equally,
as far as each one's own time allows. What they differ by within such an interval stays unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import counted
from latfix.profilers.evidence.outside.outside_view import presence
from latfix.profilers.evidence.outside.service_process import Counter
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import SERVER_EVENT, Columns
from latfix.stages import Status

#: Parts of a request's time at a service, in the order in which they are known best.
PARTS: tuple[str, ...] = ("network", "queue", "prefill", "compute", "decode", "dependency")
#: The service's own work.
WORK = ("prefill", "compute", "decode")
_STAGES = ("queue", *WORK)
#: Source of the part ``compute``, if it is not reported but seen.
BY_THREAD = "CPU time of the thread that served it, beyond usual work"
#: Prefix of the series of the metrics: ``stage.STAGE|RANK|METRIC|KIND``. The lower the rank, the more is known of the
#: metric: 0 and 1 are documented ones, of the requests' own model or path and of all; 2 and 3 likewise of others.
#: The kinds are ``sum`` (nanoseconds), ``count``, and at the end ``le=SECONDS``: a bucket's requests during the run.
PREFIX = "stage."
#: The series with a value at each reading, and the least rank of metrics that are not documented.
READINGS, OTHERS = f"{PREFIX}readings", 2
#: Stages that end with the first output.
_BEFORE_OUTPUT = ("queue", "prefill")
#: A metric counts the client's requests if it grows by as many, up to this share or number.
_OFF_SHARE, _OFF = 0.1, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """Parts of the requests' time at a service, as it reports them.

    :param parts: ``(n,)`` nanoseconds each, by names of :data:`PARTS`; without those that it does not report.
        ``network`` is what lies outside of the time that it reports as the whole.
    :param sources: by part, the metric or recording.
    :param interval_ns: usual length of the intervals whose means these are; 0 if each request has its own figures.
    :param dependencies: by name, ``(n,)`` nanoseconds of the part ``dependency``.
    :param buckets_s: by part, how many requests were at or below each bound in seconds.
    :param note: what is missing in it, or why it was not used; empty if it is complete.
    """

    parts: Mapping[str, Ints] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    interval_ns: int = 0
    dependencies: Mapping[str, Ints] = field(default_factory=dict)
    buckets_s: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    note: str = ""

    @property
    def works(self) -> bool:
        """True if it reports its own work for the requests."""
        return any(part in self.parts for part in WORK)

    def of(self, part: str, rows: Columns) -> Ints:
        """``(n,)`` nanoseconds of a part; zeros if it is not reported."""
        return self.parts.get(part, np.zeros(len(rows["index"]), np.int64))

    def worked(self, rows: Columns) -> dict[str, Ints]:
        """The service's own work for each request, by the unit of work that holds it.

        :param rows: as from :func:`latfix.profilers.evidence.outside.outside_view.as_served`.
        """
        finish = np.minimum(self.of("decode", rows), rows["finish_ns"])
        total: Ints = np.sum([self.of(part, rows) for part in WORK], axis=0)
        first = np.minimum(total - finish, rows["compute_ns"])
        return {"compute": first, "finish": finish + np.minimum(total - finish - first, rows["finish_ns"] - finish)}

    @property
    def known_as(self) -> str:
        """How the figures are known, as a clause."""
        return f"the means of intervals of {self.interval_ns / 1e9:.2g} s" if self.interval_ns else "by request"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reported:
    """One stage in one metric.

    :param at_ns: ``(k,)`` readings at which its count had changed, and the first one.
    :param total_ns: ``(k,)`` the sum at these readings; ``count`` likewise.
    """

    metric: str
    at_ns: Floats
    total_ns: Floats
    count: Floats
    buckets: tuple[tuple[float, float], ...]

    @property
    def counted(self) -> float:
        """How many requests were added between the first reading and the last."""
        return float(self.count[-1] - self.count[0])

    @property
    def mean_ns(self) -> float:
        """The mean over the run."""
        return float(self.total_ns[-1] - self.total_ns[0]) / max(self.counted, 1.0)


def server_account(record: RunRecord) -> ServerAccount:
    """What the service's own recording says about the requests of a record, if one was joined; else its metrics."""
    keep = np.asarray(record.events["kind"], dtype=object) == SERVER_EVENT
    return _joined(record, keep) if keep.any() else _by_interval(record)


def _joined(record: RunRecord, keep: Bools) -> ServerAccount:
    rows, requests = record.requests, record.events["request"][keep]
    details, whole = record.events["detail"][keep], record.events["duration_ns"][keep]
    at, end = presence(rows)
    by_index = np.argsort(rows["index"], kind="stable")
    place = np.searchsorted(rows["index"][by_index], requests)
    there = place < len(by_index)
    there[there] = rows["index"][by_index[place[there]]] == requests[there]
    row = by_index[place[there]]
    details, left = details[there], np.zeros(len(at), np.int64)
    left[row] = np.minimum(whole[there], np.maximum(end - at, 0)[row])
    network = np.zeros(len(at), np.int64)
    network[row] = np.maximum(end - at, 0)[row] - left[row]
    taken = {part: _column(row, [detail.get(part) for detail in details], len(at)) for part in _STAGES}
    waits = [detail.get("dependencies", {}) for detail in details]
    names = sorted({name for each in waits for name in each})
    others = {name: _column(row, [each.get(name) for each in waits], len(at)) for name in names}
    parts = {"network": network}
    for part, spent in {**taken, **{f"dependency.{name}": spent for name, spent in others.items()}}.items():
        if spent.any():
            parts[part] = np.minimum(spent, left)
            left = left - parts[part]
    others = {name.partition(".")[2]: parts.pop(name) for name in sorted(parts) if name.startswith("dependency.")}
    if others:
        parts["dependency"] = np.sum(list(others.values()), axis=0)
    files = ", ".join(sorted({str(detail.get("source", "")) for detail in details}))
    return ServerAccount(
        parts=parts, sources=dict.fromkeys(parts, files), dependencies=others, note=_incomplete(record, len(row))
    )


def _column(row: Ints, values: Sequence[int | None], n: int) -> Ints:
    """A part of the requests in ``row``, zero for others and if it is not recorded."""
    column = np.zeros(n, np.int64)
    column[row] = [value or 0 for value in values]
    return column


def _incomplete(record: RunRecord, joined: int) -> str:
    """How many requests of the run and of the recordings have no partner, and unread columns; empty if none."""
    answered = int(np.count_nonzero(record.requests["http_status"] > 0))
    facts = record.meta.http.get("server_log", [])
    others = ", ".join(
        f"{counted(fact['others'], 'request')} in {fact['path']}" for fact in facts if fact.get("others")
    )
    parts = [f"{answered - joined:,} of {answered:,} answered requests"] if joined < answered else []
    parts += [f"{others} (of other clients or runs)"] if others else []
    notes = [f"Without a partner on the other side: {'; '.join(parts)}."] if parts else []
    return " ".join([*notes, *(str(fact["unread"]) for fact in facts if fact.get("unread"))])


def _by_interval(record: RunRecord) -> ServerAccount:
    """The means of the service's metrics, assigned to requests; nothing if they do not count these requests."""
    rows = record.requests
    at, end = presence(rows)
    order = np.flatnonzero(rows["http_status"] > 0)
    order = order[np.argsort(end[order], kind="stable")]
    reported, note = _chosen(record, end, order)
    if not reported:
        return ServerAccount(note=note)
    parts: dict[str, Ints] = {}
    left, until_first = np.maximum(end - at, 0), np.maximum(rows["compute_ns"], 0)
    if "whole" in reported:
        parts["network"] = _shared(reported["whole"], order, end, until_first, own=left)
        left, until_first = left - parts["network"], until_first - parts["network"]
    # The shortest stage first: nearly all requests have it, while a long mean may be that of few.
    for stage in sorted(reported.keys() & set(_STAGES), key=lambda name: reported[name].mean_ns):
        before = stage in _BEFORE_OUTPUT
        parts[stage] = _shared(reported[stage], order, end, np.minimum(until_first, left) if before else left)
        left = left - parts[stage]
        until_first = until_first - (parts[stage] if before else 0)
    named = {("network" if stage == "whole" else stage): each for stage, each in reported.items()}
    return ServerAccount(
        parts=parts,
        sources={part: each.metric for part, each in named.items()},
        interval_ns=int(np.median(np.concatenate([np.diff(each.at_ns) for each in reported.values()]))),
        buckets_s={part: each.buckets for part, each in named.items() if each.buckets and part != "network"},
        note=note,
    )


def _chosen(record: RunRecord, end: Ints, order: Ints) -> tuple[dict[str, _Reported], str]:
    """By stage, the best known metric that counts the requests of the record; and why others were not used."""
    every = record.samples["series"].tolist()
    names = {name for name in every if name.startswith(PREFIX)}
    ours = np.array([name in names for name in every], dtype=bool)
    samples = {name: column[ours] for name, column in record.samples.items()}
    times = Counter.of(samples, READINGS).at_ns
    if len(times) < 2:
        return {}, ""
    series: dict[str, list[str]] = {}
    for name in names - {READINGS}:
        key, _, kind = name.rpartition("|")
        series.setdefault(key, []).append(kind)
    chosen: dict[str, tuple[tuple[int, float], _Reported]] = {}
    others: list[str] = []
    inside = order[(end[order] > times[0]) & (end[order] <= times[-1])]
    ok = np.count_nonzero(record.requests["status"][inside] == Status.OK)
    off = max(_OFF_SHARE * len(inside), _OFF)
    # In a piece of a run, requests of other pieces end before, between and after these.
    begun, ended = (np.sort(moments[order]) for moments in presence(record.requests))
    for key in sorted(series):
        stage, rank, metric = key.removeprefix(PREFIX).split("|")
        found = _reported(samples, key, series[key], times)
        near = np.searchsorted(begun, found.at_ns[1:], side="right")
        near -= np.searchsorted(ended, found.at_ns[:-1])
        grown = float(np.diff(found.count)[near > 0].sum())
        if ok - off <= grown <= len(inside) + off and grown > 0:
            fit = (int(rank), abs(grown - len(inside)))
            if stage not in chosen or fit < chosen[stage][0]:
                chosen[stage] = fit, found
        elif int(rank) < OTHERS and grown > 0:
            others.append(f"{metric} counted {grown:,.0f} requests while {len(inside):,} of these ended")
    note = f"{others[0]}, so its means are those of others, too, and are not used." if others and not chosen else ""
    return {stage: found for stage, (_, found) in chosen.items()}, note


def _reported(samples: Columns, key: str, kinds: Sequence[str], times: Floats) -> _Reported:
    total, count = (_at(times, Counter.of(samples, f"{key}|{kind}")) for kind in ("sum", "count"))
    # Without a change no request ended, or the metric is updated less often than it is read.
    kept = np.flatnonzero(np.diff(count, prepend=count[0] - 1) != 0)
    buckets = [kind for kind in kinds if kind.startswith("le=")]
    bounds = [(float(kind[3:]), Counter.of(samples, f"{key}|{kind}").value) for kind in buckets]
    return _Reported(
        metric=key.rpartition("|")[2],
        at_ns=times[kept],
        total_ns=total[kept],
        count=count[kept],
        buckets=tuple(sorted((bound, float(value[-1])) for bound, value in bounds if len(value))),
    )


def _at(times: Floats, counter: Counter) -> Floats:
    """A counter's values at each reading; zero before its first one, as for a metric without requests yet."""
    place = np.searchsorted(counter.at_ns, times, side="right")
    return np.concatenate([[0.0], counter.value])[place]


def _shared(reported: _Reported, order: Ints, end: Ints, most: Ints, own: Ints | None = None) -> Ints:
    """Each request's share of what a metric grew by in the interval in which the request ended.

    :param order: rows of answered requests, in order of ``end``.
    :param most: ``(n,)`` upper limit of each request's share.
    :param own: ``(n,)`` if given, what is shared is the rest of this time beyond the metric's.
    """
    shares = np.zeros(len(end))
    places = np.searchsorted(end[order], reported.at_ns, side="right")
    if reported.counted == len(order) - places[0]:  # these requests alone: the counts say which are in an interval
        places = places[0] + np.rint(reported.count - reported.count[0]).astype(np.int64)
    grown, total = np.diff(reported.count).tolist(), np.diff(reported.total_ns).tolist()
    for k, (first, last) in enumerate(pairwise(places.tolist())):
        if last == first or grown[k] <= 0 or total[k] < 0:
            continue
        inside, mean = order[first:last], total[k] / grown[k]
        if own is not None:
            mean = max(float(own[inside].mean()) - mean, 0.0)
        shares[inside] = evenly(mean * (last - first), most[inside])
    return np.rint(shares).astype(np.int64)


def evenly(total: float, most: Ints) -> Floats:
    """Equal shares of a total, but none above its own limit; what is above is shared by the others.

    A request that took 3 ms cannot have waited for 20, so the others waited for longer than the mean.
    """
    ordered = np.sort(most).astype(np.float64)
    below = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    level = (total - below) / np.arange(len(ordered), 0, -1)
    fits = np.flatnonzero(level <= ordered)
    return np.minimum(most, level[fits[0]] if len(fits) else np.inf)
