"""Spans: which service, or the way to which one, made slow requests slow.

Every moment of a request is the own time of one span (:mod:`span_table`). The own time of a span in which one
service waits for another is neither's work: it is the way between them, kept apart as ``network.CALLEE``; what a
service did itself is ``service.NAME``. Each call counts against what the same call usually takes.

A service that is uneven all the time is so by nature: it is listed, with its milliseconds. Named is what stands out
of the recording: a service or a way that was slower for a stretch of it; a way that takes many times what the other
ways of the same system take; or a slowness that strikes few requests and spares the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.cause_catalogue import CATALOGUE, UNEXPLAINED, KnownCause
from latfix.formatting import from_ns, share
from latfix.profilers.over_time.level_shift import Stretch, raised_stretch
from latfix.profilers.recordings.requests.accounts import DOMINANT, MATERIAL, Accounts
from latfix.profilers.recordings.requests.span_table import OwnTimes, SpanTable, own_times

#: A way is out of line from so many times what ways usually take, where there are so many others to compare with.
_OUT_OF_LINE, _LEAST_WAYS = 5.0, 4
#: What strikes at most this share of requests, and at least so many of them, is no habit.
_RARE, _LEAST_STRUCK = 0.1, 5
#: Shares of a typical latency: from where a request is struck, and by how much a stretch or a way must be slower.
_STRUCK, _WORTH, _WORTH_A_CALL = 0.25, 0.05, 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """A caller and a callee."""

    caller: int
    callee: int


@dataclass(slots=True)
class _Place:
    """A service's own work, or a way: its calls on critical paths, in order of time.

    :param rows: spans; ``usual`` nanoseconds that each of them usually takes.
    """

    name: int | Way
    rows: Ints
    usual: Floats = field(default_factory=lambda: np.zeros(0))
    level: float = 0.0
    stretch: Stretch | None = None
    out_of_line: bool = False

    @property
    def flagged(self) -> bool:
        return self.stretch is not None or self.out_of_line


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requests:
    """The requests of a span table; ``own.request`` numbers them."""

    spans: SpanTable
    own: OwnTimes
    latency: Ints
    arrival: Ints


def account_for_spans(spans: SpanTable) -> Accounts:
    """The ledger of all requests of a recording of spans."""
    own = own_times(spans)
    roots = own.roots
    requests = _Requests(
        spans=spans,
        own=own,
        latency=spans.end_ns[roots] - spans.start_ns[roots],
        arrival=spans.start_ns[roots],
    )
    places = _places(requests)
    for place in places:
        place.stretch = _stretch(place, requests)
    ways = [place for place in places if isinstance(place.name, Way)]
    for place in places:
        _learn(place, requests)
    _find_levels(ways, requests)
    _compare_ways(ways, float(np.median(requests.latency)) if len(roots) else 0.0)
    return _accounts(requests, places, _blamed(places))


def _places(requests: _Requests) -> list[_Place]:
    """Spans on critical paths, by the place whose time they are."""
    spans, own = requests.spans, requests.own
    n, services = len(spans), len(spans.services)
    inside = np.flatnonzero(spans.parent >= 0)
    remote = inside[spans.service[inside] != spans.service[spans.parent[inside]]]
    callee = np.full(n, -1, np.int64)
    callee[spans.parent[remote[::-1]]] = spans.service[remote[::-1]]
    local = np.zeros(n, bool)
    local[spans.parent[np.setdiff1d(inside, remote, assume_unique=True)]] = True
    way = (callee >= 0) & (spans.calls | ~local)
    # A client's span without the callee's own: what it waited for is the callee's, the way there included.
    unseen = spans.calls & (callee < 0) & ~local & (spans.peer >= 0)
    key = np.where(way, services + spans.service * services + callee, np.where(unseen, spans.peer, spans.service))
    rows = np.flatnonzero((own.request >= 0) & (own.own_ns > 0))
    rows = rows[np.lexsort((spans.start_ns[rows], key[rows]))]
    found = []
    for part in np.split(rows, np.flatnonzero(np.diff(key[rows])) + 1) if len(rows) else []:
        number = int(key[part[0]])
        pair = divmod(number - services, services)
        found.append(_Place(number if number < services else Way(*pair), part))
    return found


def _stretch(place: _Place, requests: _Requests) -> Stretch | None:
    """When the place was slower, by its time a request; positions are those of the requests it has a part in."""
    request = requests.own.request[place.rows]
    there, where = np.unique(request, return_inverse=True)
    total = np.bincount(where, requests.own.own_ns[place.rows]).astype(np.float64)
    stretch = raised_stretch(total)
    if stretch is None or stretch.inside - stretch.outside < _WORTH * float(np.median(requests.latency)):
        return None
    last = there[stretch.last] if stretch.last < len(there) else len(requests.latency)
    return replace(stretch, first=int(there[stretch.first]), last=int(last))


def _learn(place: _Place, requests: _Requests) -> None:
    """What each call usually takes: the median of the same operation, outside of the stretch."""
    own = requests.own.own_ns[place.rows].astype(np.float64)
    quiet = _quiet(place, requests)
    operation = requests.spans.operation[place.rows]
    place.usual = np.zeros(len(own))
    for code in np.unique(operation).tolist():
        same = operation == code
        sample = own[same & quiet] if (same & quiet).any() else own[same]
        place.usual[same] = float(np.median(sample))


def _find_levels(ways: list[_Place], requests: _Requests) -> None:
    """What a way usually takes, by all calls that a caller made over it, on a critical path or not."""
    spans = requests.spans
    inside = np.flatnonzero(spans.parent >= 0)
    parent = spans.parent[inside]
    begin = np.maximum(spans.start_ns[inside], spans.start_ns[parent])
    covered = np.zeros(len(spans), np.int64)
    np.add.at(covered, parent, np.maximum(np.minimum(spans.end_ns[inside], spans.end_ns[parent]) - begin, 0))
    alone = spans.end_ns - spans.start_ns - covered
    callee = np.full(len(spans), -1, np.int64)
    callee[parent] = spans.service[inside]
    for place in ways:
        assert isinstance(place.name, Way)
        calls = (spans.service == place.name.caller) & (callee == place.name.callee) & (alone >= 0)
        if place.stretch is not None:
            calls &= (requests.own.request < place.stretch.first) | (requests.own.request >= place.stretch.last)
        place.level = float(np.median(alone[calls])) if calls.any() else 0.0


def _quiet(place: _Place, requests: _Requests) -> Bools:
    if place.stretch is None:
        return np.ones(len(place.rows), bool)
    request = requests.own.request[place.rows]
    return np.asarray((request < place.stretch.first) | (request >= place.stretch.last))


def _compare_ways(ways: list[_Place], typical_ns: float) -> None:
    """Marks ways that take many times what the others take, and holds their calls against the others."""
    levels = np.array([place.level for place in ways])
    for number, place in enumerate(ways):
        others = np.delete(levels, number)
        if len(others) < _LEAST_WAYS:
            return
        usual = float(np.median(others))
        if place.level > _OUT_OF_LINE * usual and place.level - usual > _WORTH_A_CALL * typical_ns:
            place.out_of_line = True
            place.usual = np.minimum(place.usual, usual)


def _blamed(places: list[_Place]) -> dict[Way, int]:
    """For each way that stands out, at which of its ends the fault is: as few services as explain all of them."""
    open_ways = [place.name for place in places if isinstance(place.name, Way) and place.flagged]
    blamed: dict[Way, int] = {}
    while open_ways:
        ends = [(sum(way.callee == end for way in open_ways), 1, end) for end in {w.callee for w in open_ways}]
        ends += [(sum(way.caller == end for way in open_ways), 0, end) for end in {w.caller for w in open_ways}]
        _, as_callee, end = max(ends)
        for way in [way for way in open_ways if (way.callee if as_callee else way.caller) == end]:
            blamed[way] = end
            open_ways.remove(way)
    return blamed


def _accounts(requests: _Requests, places: list[_Place], blamed: Mapping[Way, int]) -> Accounts:
    spans, n = requests.spans, len(requests.latency)
    columns: dict[str, Ints] = {}
    members: dict[str, list[_Place]] = {}
    usual_of_all = np.zeros(n, np.int64)
    for place in places:
        end = blamed.get(place.name, place.name.callee) if isinstance(place.name, Way) else place.name
        name = f"{'network' if isinstance(place.name, Way) else 'service'}.{spans.services[end]}"
        request, own = requests.own.request[place.rows], requests.own.own_ns[place.rows]
        usual = np.rint(place.usual).astype(np.int64)
        beyond = np.zeros(n, np.int64)
        np.add.at(beyond, request, own - usual)
        np.add.at(usual_of_all, request, usual)
        columns[name] = columns.get(name, 0) + beyond
        members.setdefault(name, []).append(place)
    reference = round(float(np.median(usual_of_all))) if n else 0
    work = usual_of_all - reference
    ends = set(blamed.values())
    nameable: dict[str, float] = {"input.size": DOMINANT}
    evidence: dict[str, str] = {}
    for name, beyond in columns.items():
        evidence[name] = _sentence(members[name], requests, beyond)
        service = name.partition(".")[2]
        stands_out = any(place.flagged for place in members[name])
        implicated = name.startswith("service.") and spans.services.index(service) in ends
        if stands_out or implicated:
            nameable[name] = MATERIAL
        elif _rare(beyond, requests.latency):
            nameable[name] = DOMINANT
    evidence["input.size"] = "requests make different calls; this is what theirs usually take, beside a typical one."
    evidence[UNEXPLAINED] = "every moment belongs to a span."
    known = (*(_cause(name) for name in columns), CATALOGUE["input.size"], CATALOGUE[UNEXPLAINED])
    nothing = np.zeros(n, np.int64)
    own_ns = np.stack([*columns.values(), work, nothing]) if n else np.zeros((len(known), 0), np.int64)
    notes = spans.notes
    if requests.own.orphans:
        notes = (
            *notes,
            f"{requests.own.orphans} spans have a parent that is not in the recording; they are left out.",
        )
    if blamed:
        notes = (*notes, *_on_ends(requests, blamed))
    return Accounts(
        arrival_ns=requests.arrival,
        latency_ns=requests.latency,
        reference_ns=reference,
        causes=known,
        entries=lambda part: (own_ns[:, part], np.zeros_like(own_ns[:, part])),
        evidence=evidence,
        nameable=nameable,
        ids=tuple(spans.traces[k] for k in spans.trace[requests.own.roots].tolist()),
        notes=notes,
    )


def _cause(name: str) -> KnownCause:
    kind, _, service = name.partition(".")
    if kind == "network":
        words = (f"the way between {service} and its callers", f"the way to {service} and back taking longer")
        return KnownCause(name, "measured", words[0], happened=words[1], behind=f"one that waited for {service}")
    words = (f"{service}'s own time", f"{service} itself taking longer")
    return KnownCause(name, "measured", words[0], happened=words[1], behind=f"one that waited for {service}")


def _rare(beyond: Ints, latency: Ints) -> bool:
    struck = int(np.count_nonzero(beyond > _STRUCK * float(np.median(latency))))
    return _LEAST_STRUCK <= struck <= _RARE * len(latency)


def _sentence(places: list[_Place], requests: _Requests, beyond: Ints) -> str:
    services = requests.spans.services
    parts = []
    for place in sorted(places, key=lambda each: -len(each.rows))[:3]:
        own = requests.own.own_ns[place.rows]
        where = "itself"
        if isinstance(place.name, Way):
            where = f"{services[place.name.caller]} → {services[place.name.callee]}"
        usual = float(np.median(place.usual)) if len(place.usual) else 0.0
        text = f"{where}: {len(own):,} calls, median {from_ns(float(np.median(own)))}, usually {from_ns(usual)}"
        if place.stretch is not None:
            begin, end = _seconds(place.stretch, requests)
            text += (
                f", {place.stretch.inside / max(place.stretch.outside, 1.0):.1f}x from {begin:.0f} s to {end:.0f} s"
            )
        elif place.out_of_line:
            text += " as other ways show"
        parts.append(text)
    struck = np.count_nonzero(beyond > _STRUCK * float(np.median(requests.latency)))
    return f"{'; '.join(parts)}; {share(struck / max(len(beyond), 1))} of requests struck."


def _seconds(stretch: Stretch, requests: _Requests) -> tuple[float, float]:
    arrival = requests.arrival
    last = min(stretch.last, len(arrival) - 1)
    return float(arrival[stretch.first] - arrival[0]) / 1e9, float(arrival[last] - arrival[0]) / 1e9


def _on_ends(requests: _Requests, blamed: Mapping[Way, int]) -> tuple[str, ...]:
    services = requests.spans.services
    callers = {way for way, end in blamed.items() if end == way.caller}
    return tuple(
        f"Ways from {services[end]} stand out to {sum(way.caller == end for way in callers)} services at once: "
        f"they are counted to {services[end]}."
        for end in sorted({way.caller for way in callers})
    )
