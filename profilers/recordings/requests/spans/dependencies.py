"""Spans: the service, or the network path to a service, that made slow requests slow.

Every moment of a request is the own time of one span (:mod:`span_table`). The own time of a span in which one
service waits for another belongs to neither: it is the network path between them, ``network.CALLEE``. A service's own
work is ``service.NAME``. Each call is compared with the usual time of the same call.

A service that varies all the time is listed with its milliseconds, but not named. A cause is named if it stands out
in the recording: a service or path that was slower for a stretch of it, a path that takes many times as long as the
other paths of the system, a shard that takes many times as long as the others, or a slowdown that hits few requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from latfix.arrays import Bools, Floats, Ints, groups_of
from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED, KnownCause
from latfix.formatting import from_ns, percent, share, significant
from latfix.profilers.over_time.level_shift import Stretch, raised_stretch
from latfix.profilers.recordings.requests.findings import DOMINANT, MATERIAL, Accounts
from latfix.profilers.recordings.requests.spans.clock_skew import with_one_clock
from latfix.profilers.recordings.requests.spans.span_table import SpanTable, outliving, own_times

#: A path is out of line from this multiple of the other paths' median, if there are at least so many others.
_OUT_OF_LINE, _LEAST_PATHS = 5.0, 4
#: Others that do the same work for the same caller, at least, such as the shards of a store.
_LEAST_ALIKE = 3
#: Share of requests whose calls are compared with those of all.
_LARGEST = 0.05
_NUMBER = re.compile(r"\d+")
#: A slowdown is rare if it hits at most this share of requests, and at least so many.
_RARE, _LEAST_HIT = 0.1, 5
#: Four standard deviations of normal scatter, in median absolute deviations: the spread of logarithms.
_FAR = 4 * 1.4826
#: Shares of the median latency: the excess that counts as a hit, and the minimum slowdown of a stretch and of a path.
_HIT, _MATERIAL, _MATERIAL_PATH = 0.25, 0.05, 0.02


@dataclass(frozen=True, slots=True)
class _Path:
    """The network path from a caller to a callee."""

    caller: int
    callee: int


@dataclass(slots=True)
class _Place:
    """A service's own work, or a path: its calls on critical paths, in order of time.

    :param rows: ``(m,)`` spans; ``usual`` ``(m,)`` the usual nanoseconds of each.
    :param scatter: of all such calls, on a critical path or not, the length divided by the median of the operation.
    """

    name: int | _Path
    rows: Ints
    usual: Floats = field(default_factory=lambda: np.zeros(0))
    scatter: Floats = field(default_factory=lambda: np.zeros(0))
    level: float = 0.0
    stretch: Stretch | None = None
    out_of_line: bool = False

    @property
    def flagged(self) -> bool:
        return self.stretch is not None or self.out_of_line


class _Requests:
    """The requests of a span table; ``own.request`` numbers them.

    :ivar alone_ns: ``(n,)`` length of each span less that of its children, on a critical path or not.
    :ivar alike_ns: the same of all calls of a service and operation.
    """

    def __init__(self, spans: SpanTable) -> None:
        self.spans, self.own = spans, own_times(spans)
        roots = self.own.roots
        self.latency, self.arrival = spans.end_ns[roots] - spans.start_ns[roots], spans.start_ns[roots]
        self.alone_ns = _alone(spans)
        inside = np.flatnonzero(self.own.request >= 0)
        alike = groups_of((spans.service * len(spans.operations) + spans.operation)[inside])
        self.alike_ns = {
            (int(spans.service[rows[0]]), int(spans.operation[rows[0]])): self.alone_ns[rows]
            for rows in (inside[group] for group in alike)
        }


def account_for_spans(spans: SpanTable) -> Accounts:
    """The ledger of the requests of a recording of spans that ended ok."""
    requests = _Requests(_with_callees(with_one_clock(spans)))
    place_of = _place_of(requests)
    places = _places(requests, place_of)
    for place in places:
        place.stretch = _stretch(place, requests)
    paths = [place for place in places if isinstance(place.name, _Path)]
    for place in places:
        _measure_usual(place, requests)
    _find_levels(paths, requests)
    typical_ns = float(np.median(requests.latency)) if len(requests.latency) else 0.0
    _compare_paths(paths, typical_ns)
    _compare_alike(places, place_of, requests, typical_ns)
    return _accounts(requests, places, _blamed(places))


def _with_callees(spans: SpanTable) -> SpanTable:
    """The spans with a name for each unknown callee: the wait in a call is not the caller's own time."""
    unknown = len(spans.services) + spans.service
    callees = (f"a callee of {name}" for name in spans.services)
    return replace(spans, peer=np.where(spans.peer < 0, unknown, spans.peer), services=(*spans.services, *callees))


def _alone(spans: SpanTable) -> Ints:
    inside = np.flatnonzero((spans.parent >= 0) & ~outliving(spans))
    inside = inside[np.lexsort((spans.start_ns[inside], spans.parent[inside]))]
    parent = spans.parent[inside]
    length = spans.end_ns[parent] - spans.start_ns[parent]
    begin, end = (np.clip(at[inside] - spans.start_ns[parent], 0, length) for at in (spans.start_ns, spans.end_ns))
    # The latest end so far among children of one parent: children may overlap.
    apart = np.cumsum(np.diff(parent, prepend=-1) != 0) * (int(length.max(initial=0)) + 1)
    latest = np.maximum.accumulate(end + apart)
    before = np.concatenate([latest[:1] * 0, latest[:-1]])
    covered = np.zeros(len(spans), np.int64)
    np.add.at(covered, parent, np.maximum(latest - np.maximum(begin + apart, before), 0))
    return np.asarray(spans.end_ns - spans.start_ns - covered)


def _place_of(requests: _Requests) -> Ints:
    """``(n,)`` the service that each span's own time belongs to, or from ``len(services)`` on a number for a path."""
    spans = requests.spans
    n, services = len(spans), len(spans.services)
    inside = np.flatnonzero(spans.parent >= 0)
    remote = inside[spans.service[inside] != spans.service[spans.parent[inside]]]
    callee = np.full(n, -1, np.int64)
    callee[spans.parent[remote[::-1]]] = spans.service[remote[::-1]]
    local = np.zeros(n, bool)
    local[spans.parent[np.setdiff1d(inside, remote, assume_unique=True)]] = True
    # Where clients' spans are not marked: an inner span around nothing but the callee's is one. The span in which a
    # service answers is its own work.
    inner = np.zeros(n, bool)
    inner[np.setdiff1d(inside, remote, assume_unique=True)] = True
    on_path = (callee >= 0) & (spans.calls | (inner & ~local))
    # A client span without the callee's span: its wait belongs to the callee, including the path.
    unseen = spans.calls & (callee < 0) & ~local
    service = np.where(unseen, spans.peer, spans.service)
    return np.asarray(np.where(on_path, services + spans.service * services + callee, service))


def _places(requests: _Requests, place_of: Ints) -> list[_Place]:
    """Spans on critical paths, grouped by the service or path that their own time belongs to."""
    spans, own, services = requests.spans, requests.own, len(requests.spans.services)
    rows = np.flatnonzero((own.request >= 0) & (own.own_ns > 0))
    rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
    places = []
    for part in (rows[group] for group in groups_of(place_of[rows])):
        number = int(place_of[part[0]])
        pair = divmod(number - services, services)
        places.append(_Place(number if number < services else _Path(*pair), part))
    return places


def _stretch(place: _Place, requests: _Requests) -> Stretch | None:
    """The stretch of requests in which the place was slower, by its time per request."""
    request = requests.own.request[place.rows]
    involved, where = np.unique(request, return_inverse=True)
    total = np.bincount(where, requests.own.own_ns[place.rows]).astype(np.float64)
    stretch = raised_stretch(total)
    if stretch is None or stretch.inside - stretch.outside < _MATERIAL * float(np.median(requests.latency)):
        return None
    last = involved[stretch.last] if stretch.last < len(involved) else len(requests.latency)
    return replace(stretch, first=int(involved[stretch.first]), last=int(last))


def _measure_usual(place: _Place, requests: _Requests) -> None:
    """Set the usual time of each call: the median of the same operation outside the stretch.

    A call beside others is on the critical path only if it is slow, so the median of all such calls counts if it is
    smaller.
    """
    spans = requests.spans
    own = requests.own.own_ns[place.rows].astype(np.float64)
    quiet = _quiet(place, place.rows, requests)
    place.usual = np.zeros(len(own))
    alike = []
    for same in groups_of(spans.operation[place.rows]):
        sample = own[same][quiet[same]] if quiet[same].any() else own[same]
        row = place.rows[same[0]]
        alone = requests.alike_ns[int(spans.service[row]), int(spans.operation[row])]
        place.usual[same] = min(float(np.median(sample)), float(np.median(alone)))
        alike.append(alone / max(float(np.median(alone)), 1.0))
    place.scatter = np.concatenate(alike)


def _find_levels(paths: list[_Place], requests: _Requests) -> None:
    """Set the usual time of each path: the median of all calls over it, on a critical path or not."""
    spans = requests.spans
    inside = np.flatnonzero(spans.parent >= 0)
    callee = np.full(len(spans), -1, np.int64)
    callee[spans.parent[inside]] = spans.service[inside]
    callers = np.flatnonzero(callee >= 0)
    over = (callers[group] for group in groups_of((spans.service * len(spans.services) + callee)[callers]))
    calls_of = {(int(spans.service[rows[0]]), int(callee[rows[0]])): rows for rows in over}
    for place in paths:
        assert isinstance(place.name, _Path)
        calls = calls_of.get((place.name.caller, place.name.callee), callers[:0])
        calls = calls[_quiet(place, calls, requests)]
        place.level = float(np.median(requests.alone_ns[calls])) if len(calls) else 0.0


def _quiet(place: _Place, rows: Ints, requests: _Requests) -> Bools:
    """True for spans of requests outside the place's stretch."""
    if place.stretch is None:
        return np.ones(len(rows), bool)
    request = requests.own.request[rows]
    return np.asarray((request < place.stretch.first) | (request >= place.stretch.last))


def _compare_paths(paths: list[_Place], typical_ns: float) -> None:
    """Flag paths that are many times slower than the others, and set their calls' usual time to the others'."""
    if len(paths) <= _LEAST_PATHS:
        return
    levels = np.array([place.level for place in paths])
    for number, place in enumerate(paths):
        usual = float(np.median(np.delete(levels, number)))
        if place.level > _OUT_OF_LINE * usual and place.level - usual > _MATERIAL_PATH * typical_ns:
            place.out_of_line = True
            place.usual = np.minimum(place.usual, usual)


def _compare_alike(places: list[_Place], place_of: Ints, requests: _Requests, typical_ns: float) -> None:
    """Flag services that take many times as long as others for the same operation of the same caller.

    Their names differ in numbers only: an operation may have a name as general as ``GET``. All calls count: of shards
    that are called side by side, only the slowest is on the critical path.
    """
    spans = requests.spans
    on_path = {place.name: place for place in places}
    families = [_NUMBER.sub("#", name) for name in spans.services]
    named = np.array([re.search("[^\\W\\d_]", name) is not None for name in families])  # an address may be another's
    rows = np.flatnonzero((requests.own.request >= 0) & (place_of < len(families)))
    rows = rows[named[place_of[rows]]]
    # The wait for a callee without spans is its client's.
    client = np.where(spans.service[rows] == place_of[rows], spans.parent[rows], rows)
    caller = np.where(client >= 0, spans.service[np.maximum(client, 0)], -1)
    operations = len(spans.operations)
    levels: dict[tuple[int, int, str], dict[int, float]] = {}
    for same in groups_of(((caller + 1) * operations + spans.operation[rows]) * len(families) + place_of[rows]):
        row, service = rows[same[0]], int(place_of[rows[same[0]]])
        work = int(caller[same[0]]), int(spans.operation[row]), families[service]
        levels.setdefault(work, {})[service] = float(np.median(requests.alone_ns[rows[same]]))
    for alike in levels.values():
        for service, level in alike.items():
            others = [each for other, each in alike.items() if other != service]
            if len(others) < _LEAST_ALIKE or level <= _OUT_OF_LINE * (usual := float(np.median(others))):
                continue
            if service in on_path and level - usual > _MATERIAL_PATH * typical_ns:
                on_path[service].out_of_line = True
                on_path[service].usual = np.minimum(on_path[service].usual, usual)


def _blamed(places: list[_Place]) -> dict[_Path, int]:
    """For each flagged path, the end that has the fault: the fewest services that explain all of them."""
    pending = [place.name for place in places if isinstance(place.name, _Path) and place.flagged]
    blamed: dict[_Path, int] = {}
    while pending:
        ends = [(sum(path.callee == end for path in pending), 1, end) for end in {p.callee for p in pending}]
        ends += [(sum(path.caller == end for path in pending), 0, end) for end in {p.caller for p in pending}]
        _, as_callee, end = max(ends)
        for path in [path for path in pending if (path.callee if as_callee else path.caller) == end]:
            blamed[path] = end
            pending.remove(path)
    return blamed


def _accounts(requests: _Requests, places: list[_Place], blamed: Mapping[_Path, int]) -> Accounts:
    spans, n = requests.spans, len(requests.latency)
    named: dict[str, list[_Place]] = {}
    for place in places:
        end = blamed.get(place.name, place.name.callee) if isinstance(place.name, _Path) else place.name
        name = f"{'network' if isinstance(place.name, _Path) else 'service'}.{spans.services[end]}"
        named.setdefault(name, []).append(place)
    implicated = {f"service.{spans.services[end]}" for end in blamed.values()}
    columns: dict[str, Ints] = {}
    nameable: dict[str, float] = {"input.size": DOMINANT}
    evidence: dict[str, str] = {}
    usual_of_all = np.zeros(n, np.int64)
    work_at: dict[str, tuple[Any, Any]] = {}
    for name, members in named.items():
        rows = np.concatenate([place.rows for place in members])
        usual = np.rint(np.concatenate([place.usual for place in members])).astype(np.int64)
        request, own = requests.own.request[rows], requests.own.own_ns[rows]
        beyond = columns[name] = np.zeros(n, np.int64)
        np.add.at(beyond, request, own - usual)
        np.add.at(usual_of_all, request, usual)
        work_at[name] = np.bincount(request, usual, n), np.bincount(request, minlength=n)
        evidence[name] = _sentence(members, requests, beyond)
        scatter = np.concatenate([place.scatter for place in members])
        if name in implicated or any(place.flagged for place in members):
            nameable[name] = MATERIAL
        elif _rare(beyond, work_at[name][0], scatter, requests.latency):
            nameable[name] = DOMINANT
    ok = np.flatnonzero(~spans.failed[requests.own.roots])
    reference = round(float(np.median(usual_of_all[ok]))) if len(ok) else 0
    work = usual_of_all - reference
    evidence["input.size"] = _different_calls(work, work_at)
    evidence[UNEXPLAINED] = "every moment belongs to a span."
    known = (*(_cause(name) for name in columns), CATALOGUE["input.size"], CATALOGUE[UNEXPLAINED])
    nothing = np.zeros(n, np.int64)
    own_ns = np.stack([*columns.values(), work, nothing])[:, ok]
    notes = spans.notes
    if requests.own.orphans:
        notes = (
            *notes,
            f"{requests.own.orphans} spans are left out: their parents are not in the recording.",
        )
    if blamed:
        notes = (*notes, *_on_ends(requests, blamed))
    return Accounts(
        arrival_ns=requests.arrival[ok],
        latency_ns=requests.latency[ok],
        reference_ns=reference,
        causes=known,
        entries=lambda part: (own_ns[:, part], np.zeros_like(own_ns[:, part])),
        evidence=evidence,
        nameable=nameable,
        ids=tuple(spans.traces[k] for k in spans.trace[requests.own.roots[ok]].tolist()),
        notes=notes,
    )


def _different_calls(work: Ints, work_at: Mapping[str, tuple[Any, Any]]) -> str:
    """A sentence on the place that most of the larger work is at, and the calls there: many may be retries.

    :param work_at: by place, ``(n,)`` the usual nanoseconds and the number of each request's calls.
    """
    text = "requests make different calls; this is the usual time of their calls, compared with a typical request"
    slow = np.argsort(work)[-max(round(_LARGEST * len(work)), 1) :]
    added = {name: float(usual[slow].mean() - usual.mean()) for name, (usual, _) in work_at.items()}
    most = max(added, key=lambda name: added[name], default="")
    if not most or added[most] <= 0:
        return f"{text}."
    calls = work_at[most][1]
    return (
        f"{text}; most of it is {most}: {significant(calls[slow].mean())} calls in the {percent(_LARGEST)} of "
        f"requests that need most, {significant(calls.mean())} in the mean."
    )


def _cause(name: str) -> KnownCause:
    kind, _, service = name.partition(".")
    title, happened = f"{service}'s own time", f"{service} itself taking longer"
    if kind == "network":
        title = f"the network path between {service} and its callers"
        happened = f"the network path to {service} and back taking longer"
    return KnownCause(name, "measured", title, happened=happened, behind=f"one that waited for {service}")


def _rare(beyond: Ints, usual: Floats, scatter: Floats, latency: Ints) -> bool:
    """True if few requests lost much time there, more than its usual scatter explains.

    :param usual: ``(n,)`` usual time there; ``scatter``: of each call, on a critical path or not.
    """
    spread = float(np.median(np.abs(np.log(np.maximum(scatter, 1e-9))))) if len(scatter) else 0.0
    far = beyond > np.expm1(_FAR * spread) * usual
    hit = beyond > _HIT * float(np.median(latency))
    return bool(np.count_nonzero(hit & far) >= _LEAST_HIT and np.count_nonzero(hit) <= _RARE * len(latency))


def _sentence(places: list[_Place], requests: _Requests, beyond: Ints) -> str:
    services = requests.spans.services
    parts = []
    for place in sorted(places, key=lambda each: -len(each.rows))[:3]:
        own = requests.own.own_ns[place.rows]
        where = "itself"
        if isinstance(place.name, _Path):
            where = f"{services[place.name.caller]} → {services[place.name.callee]}"
        usual = float(np.median(place.usual)) if len(place.usual) else 0.0
        text = f"{where}: {len(own):,} calls, median {from_ns(float(np.median(own)))}, usually {from_ns(usual)}"
        if place.stretch is not None:
            begin, end = _seconds(place.stretch, requests)
            text += (
                f", {place.stretch.inside / max(place.stretch.outside, 1.0):.1f}x from {begin:.0f} s to {end:.0f} s"
            )
        elif place.out_of_line:
            text += " on other paths" if isinstance(place.name, _Path) else " by others for the same calls"
        parts.append(text)
    hit = np.count_nonzero(beyond > _HIT * float(np.median(requests.latency)))
    return f"{'; '.join(parts)}; {share(hit / max(len(beyond), 1))} of requests hit."


def _seconds(stretch: Stretch, requests: _Requests) -> tuple[float, float]:
    arrival = requests.arrival
    last = min(stretch.last, len(arrival) - 1)
    return float(arrival[stretch.first] - arrival[0]) / 1e9, float(arrival[last] - arrival[0]) / 1e9


def _on_ends(requests: _Requests, blamed: Mapping[_Path, int]) -> tuple[str, ...]:
    services = requests.spans.services
    callers = {path for path, end in blamed.items() if end == path.caller}
    return tuple(
        f"Network paths from {services[end]} to {sum(path.caller == end for path in callers)} services stand out at "
        f"once: they are attributed to {services[end]}."
        for end in sorted({path.caller for path in callers})
    )
