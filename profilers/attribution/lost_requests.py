"""Requests that did not end ``ok``: the stage in which they were lost, and what they had waited for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.attribution.ledger import LedgerContext
from latfix.profilers.evidence.units import Evidence
from latfix.results.diagnosis import Losses
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns
from latfix.stages import LOST_NAMES, STAGES, STATUS_NAMES, Status, stage_label

_STAGE_NS = tuple(f"{stage}_ns" for stage in STAGES)
_WAITS = ("prepare_thread", "prepare_wait_ns", "intake_ns")
_COLUMNS = ("index", "arrival_ns", *_STAGE_NS, "send_ns", "latency_ns", "status", "warmup", *_WAITS)
#: Kinds of messages that are listed.
_MESSAGES = 3
#: An outage: least lost requests, share of those that arrived meanwhile, and largest share of the run's requests.
_LEAST_AWAY, _AWAY, _MOST = 5, 0.9, 0.9
_DIGITS = re.compile(r"\d+")


def lost_requests(
    source: RecordSource, evidence: Evidence, books: LedgerContext, sample: RunRecord
) -> tuple[Losses, ...]:
    """The lost requests of a run, by status.

    :param evidence: of the run or of a sample that stands for it; ``books`` its ledger.
    :param sample: the record of both.
    """
    rows, hung = sample.requests, np.flatnonzero(sample.events["kind"] == "hang")
    begun = sample.events["t_ns"][hung]
    hangs = np.stack([begun, begun + sample.events["duration_ns"][hung]], axis=1)[
        sample.events["batch_id"][hung] >= 0
    ]
    parts, arrived = [], 0
    for part in source.scan(_COLUMNS):
        measured = part["warmup"] == 0
        arrived += int(np.count_nonzero(measured))
        lost = measured & (part["status"] != Status.OK)
        parts.append({name: part[name][lost] for name in _COLUMNS})
    every = {name: np.concatenate([np.zeros(0, np.int64), *(lost[name] for lost in parts)]) for name in _COLUMNS}
    if not len(every["status"]):
        return ()
    waits, errors = _Waits(evidence, books, hangs), source.errors()
    found = []
    for name in LOST_NAMES:
        code = STATUS_NAMES.index(name)
        some, seen = every["status"] == code, (rows["warmup"] == 0) & (rows["status"] == code)
        if some.any():
            waited_for = waits.mean_ms({key: rows[key][seen] for key in _COLUMNS})
            own = {key: values[some] for key, values in every.items()}
            losses = replace(
                _losses(name, own, arrived, waited_for, errors),
                outage_s=_outage(source, own["arrival_ns"], arrived),
            )
            found.append(_from_outside(losses, own) if evidence.setup.outside else losses)
    return tuple(found)


def _from_outside(losses: Losses, rows: Columns) -> Losses:
    """Rename the stages to those that a client sees from outside the service.

    A request of which nothing was sent was lost before its connection was open.
    """
    ends = zip(_stages_of(rows), rows["send_ns"].tolist(), strict=True)
    stages = Counter(
        "connect" if name == "prepare" and not sent else stage_label(name, outside=True) for name, sent in ends
    )
    took = {stage_label(stage, outside=True): ms for stage, ms in losses.stages_ms.items()}
    return replace(losses, in_stage=dict(stages.most_common()), stages_ms=took)


def _losses(
    name: str, rows: Columns, arrived: int, waited_for: Mapping[str, float], errors: Mapping[int, str]
) -> Losses:
    count, waited = len(rows["status"]), rows["latency_ns"] / 1e6
    stages = {stage: float(rows[f"{stage}_ns"].mean()) / 1e6 for stage in STAGES}
    messages = Counter(errors[k] for k in rows["index"].tolist() if k in errors)
    return Losses(
        status=name,
        requests=count,
        share=count / arrived,
        waited_ms={"p50": float(np.median(waited)), "max": float(waited.max())},
        in_stage=dict(Counter(_stages_of(rows)).most_common()),
        stages_ms={stage: took for stage, took in stages.items() if took},
        waited_for_ms=waited_for,
        errors=dict(_alike(messages).most_common(_MESSAGES)),
    )


def _outage(source: RecordSource, lost: Ints, arrived: int) -> tuple[float, ...]:
    """First and last arrival of lost requests, in seconds, if they are a time in which the service was away.

    :param arrived: number of measured requests of the run.
    """
    first, last = int(lost.min()), int(lost.max())
    if len(lost) < _LEAST_AWAY:
        return ()
    meanwhile = 0
    for part in source.scan(("arrival_ns", "warmup")):
        inside = (part["warmup"] == 0) & (part["arrival_ns"] >= first) & (part["arrival_ns"] <= last)
        meanwhile += int(np.count_nonzero(inside))
    if meanwhile > _MOST * arrived or len(lost) < _AWAY * meanwhile:
        return ()
    return first / 1e9, last / 1e9


def _alike(messages: Counter[str]) -> Counter[str]:
    """The number of each message, in which others count that differ only in numbers (shapes, ids, times)."""
    first: dict[str, str] = {}
    found: Counter[str] = Counter()
    for message, number in messages.most_common():
        found[first.setdefault(_DIGITS.sub("#", message), message)] += number
    return found


def _stages_of(rows: Columns) -> list[str]:
    """The stage in which each request was lost: the last with a duration."""
    lengths = np.stack([rows[name] for name in _STAGE_NS])
    lengths[STAGES.index("prepare")] -= rows["intake_ns"]  # before intake the request was not yet in prepare
    took = lengths > 0
    last = len(STAGES) - 1 - np.argmax(took[::-1], axis=0)
    names = [STAGES[k] for k in last.tolist()]
    refused = set(np.flatnonzero(~took[1:].any(axis=0)).tolist())
    unknown = set(np.flatnonzero((rows["prepare_thread"] < 0) & (rows["queue_ns"] > 0)).tolist())
    return ["admission" if k in refused else "unknown" if k in unknown else name for k, name in enumerate(names)]


class _Waits:
    """What threads worked on while requests waited for them, from the queues of the ledger."""

    def __init__(self, evidence: Evidence, books: LedgerContext, hangs: Ints) -> None:
        self._hangs, self._count = hangs, evidence.setup.threads
        rows, batches, line, setup = evidence.rows, evidence.batches, books.line, evidence.setup
        names = ("work", *books.ledger.causes)
        prepared, prepare = line.prepared, evidence.units["prepare"]
        extra = line.prepare_extra[prepared].T
        parts = np.concatenate([prepare.wall[prepared] - extra.sum(axis=0, keepdims=True), extra])
        thread = rows["prepare_thread"][prepared]
        self._pool = _Spent(names, prepare.end[prepared], parts, thread, setup.prepare_threads)
        head = evidence.head
        some = head >= 0
        closed = (batches["close_ns"] - evidence.units["lag"].wall)[some]
        extra = line.batch_extra[head[some]].T.copy()
        released = evidence.released_ns[some]
        work = released - closed - extra.sum(axis=0, keepdims=True)
        extra[names.index("batching.window") - 1] += np.maximum(closed - batches["open_ns"][some], 0)
        parts = np.concatenate([work, extra])
        self._workers = _Spent(names, released, parts, batches["worker"][some], setup.workers)

    def mean_ms(self, rows: Columns) -> dict[str, float]:
        """The mean wait in ``prepare`` and ``queue`` by what it was spent on, largest first."""
        handed = rows["arrival_ns"] + rows["dispatch_ns"]
        enqueued = handed + rows["prepare_ns"]
        total: dict[str, float] = {"unrecorded": 0.0}
        for spent, begin, length in (
            (self._pool, handed, rows["prepare_wait_ns"]),
            (self._workers, enqueued, rows["queue_ns"]),
        ):
            known = spent.between(begin, begin + length)
            for name, value in known.items():
                total[name] = total.get(name, 0.0) + value
            total["unrecorded"] += float(length.sum()) - sum(known.values())
        hung = sum(float(_overlap(enqueued, rows["queue_ns"], *hang).sum()) / self._count for hang in self._hangs)
        total["unrecorded"] -= hung
        total["hang"] = hung
        each = {name: value / 1e6 / max(len(handed), 1) for name, value in total.items()}
        least = 0.001 * sum(map(abs, each.values()))
        return dict(sorted(((k, v) for k, v in each.items() if abs(v) > least), key=lambda one: -one[1]))


def _overlap(begin: Ints, length: Ints, first: int, last: int) -> Ints:
    """The overlap of each stretch with ``first`` to ``last``."""
    return np.asarray(np.maximum(np.minimum(begin + length, last) - np.maximum(begin, first), 0), dtype=np.int64)


class _Spent:
    """Busy time of one kind of thread, by what it was spent on."""

    def __init__(self, names: tuple[str, ...], ended: Ints, parts: Floats, thread: Ints, threads: int) -> None:
        self._threads, self._names = max(threads, 1), names
        self._lanes: list[tuple[Floats, Floats]] = []
        for number in np.unique(thread):
            rows = np.flatnonzero(thread == number)
            rows = rows[np.argsort(ended[rows], kind="stable")]
            own, ends = parts[:, rows], ended[rows].astype(np.float64)
            starts = np.maximum(ends - own.sum(axis=0), np.concatenate([[-np.inf], ends[:-1]]))
            spent = np.repeat(np.cumsum(own, axis=1), 2, axis=1)
            spent[:, ::2] -= own
            self._lanes.append((np.stack([starts, ends], axis=1).reshape(-1), spent))

    def between(self, begin: Ints, end: Ints) -> dict[str, float]:
        """Time from ``begin`` to ``end`` by what it was spent on: the mean over threads, summed over waits."""
        found = dict.fromkeys(self._names, 0.0)
        for times, spent in self._lanes:
            for name, running in zip(self._names, spent, strict=True):
                part = np.interp(end, times, running) - np.interp(begin, times, running)
                found[name] += float(part.sum()) / self._threads
        return {name: value for name, value in found.items() if value}
