"""What latency the recorded traffic would have met under other settings: a replay of the service without running it.

Each request brings what was measured of it: when it was handed over, its own ``prepare`` and ``finish``, the inputs
that its batch's compute depends on, and what its batch took beyond that (pauses, faults, waits for a core). The
service's policy is then run over them on simulated time, with batches formed anew and their compute taken from the
run's own model of work. A forecast is a prediction: it is calibrated by what the same simulation says of the settings
that ran, and :attr:`Forecast.error` says how far that is from what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.attribution.ledger import Books, make_books
from latfix.profilers.causes import CAUSES
from latfix.profilers.evidence.expected_work import padded_row
from latfix.profilers.evidence.units import Evidence, gather
from latfix.profilers.evidence.work_model import WorkModel
from latfix.profilers.forecast.batch_cost import BatchCost, columns, fit_cost
from latfix.queueing.length_buckets import padded_elements
from latfix.queueing.queue_simulator import Policy, begun_in_order, discipline_of, form_batches
from latfix.run_record.run_record import RunRecord
from latfix.stages import Status
from latfix.statistics.latency_summary import summarize_ms

#: More requests than this are not simulated: their first so many stand for the run.
MOST = 20_000
#: What the machine does is another thing in each replay, and goes with how long a batch computes.
_OF_THE_MACHINE = "host."
#: Causes that the simulation brings about by itself: removing one of them is a matter of settings.
_OF_THE_POLICY = ("traffic.", "batching.", "input.")
#: What a simulation of what ran may miss after something was learnt, however little it missed before.
_WORSE = 0.1
#: Single requests among :meth:`Forecast.probes`.
_SINGLES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How requests are served, as far as a forecast knows of it. The fields are those of the runner's settings.

    :param window_ns: how long the oldest request waits for company.
    :param by_length: a batch takes those like its head.
    :param cost: how the time of batches changes; ``None`` for what was recorded.
    :param pace: how much longer batches take than foretold, from replays (:meth:`Forecast.pace_of`).
    :param without: ids of causes whose time is taken out of requests and batches.
    """

    max_batch: int
    window_ns: float
    workers: int
    prepare_threads: int
    by_length: bool = False
    cost: BatchCost | None = None
    pace: float = 1.0
    without: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What requests bring. Nanoseconds, ``(n,)`` in order of being handed over.

    :param index: position in the schedule.
    :param inputs: ``(n, g)`` elements, length, features.
    :param pauses: ``(k, n)`` what stopped a request's batch, by cause, at the batch's head. ``prepare_extra`` the
        same of ``prepare``.
    :param slowed: ``(k + 1, n)`` how much longer its batch took, by cause, as a share of its undisturbed time, for
        each of its members; the last row is what no cause stands for, of either sign.
    :param length: what batches by length go by.
    """

    index: Ints
    arrival: Floats
    handed: Floats
    prepare: Floats
    finish: Floats
    inputs: Floats
    pauses: Floats
    slowed: Floats
    prepare_extra: Floats
    priority: Ints
    length: Ints
    causes: tuple[str, ...]

    def met(self, without: Collection[str]) -> tuple[Floats, Floats, Floats]:
        """What requests meet without some causes: ``prepare``, pauses, and how much longer batches take."""
        kept = np.array([cause not in without for cause in self.causes], dtype=np.float64)
        prepare = np.maximum(self.prepare - (1.0 - kept) @ self.prepare_extra, 0.0)
        return prepare, kept @ self.pauses, 1.0 + np.append(kept, 1.0) @ self.slowed


class Forecast:
    """Latencies of a run's requests under other settings.

    :param books: of the run, where they are at hand.
    """

    def __init__(self, record: RunRecord, *, evidence: Evidence | None = None, books: Books | None = None) -> None:
        evidence = gather(record) if evidence is None else evidence
        books = make_books(evidence) if books is None else books
        setup = evidence.setup
        self.serving = Serving(
            max_batch=setup.max_batch,
            window_ns=float(setup.window_ns),
            workers=setup.workers,
            prepare_threads=setup.prepare_threads,
            by_length=setup.by_length,
        )
        self._evidence, self._books = evidence, books
        self._schedule = record.traffic.arrival_ns
        self.measured = summarize_ms(record.latencies_ns())
        self._take(_BatchTime.of(evidence))

    def _take(self, model: _BatchTime) -> None:
        self._model, self._work = model, _work(self._evidence, self._books, model)
        self.simulated = summarize_ms(self.latencies(self.serving))

    def learn(self, batches: Sequence[Sequence[int]], took: Sequence[float]) -> None:
        """Take how the time of a batch goes with what is in it from batches that the service computed for that.

        A run shows the batches that it formed: where all were full, it does not tell what one request takes alone.
        All of them together still take as long as they did: beside the traffic, the service computes as recorded.

        :param batches: positions in the schedule, as :meth:`cost` takes them; ``took`` nanoseconds of each.
        """
        as_it_was, place = self._model, self._place()
        usable = [k for k, batch in enumerate(batches) if all(position in place for position in batch)]
        time_of = as_it_was.timer(self._work.inputs, None)
        told = [time_of([place[position] for position in batches[k]]) for k in usable]
        found = self.cost([batches[k] for k in usable], told, [took[k] for k in usable])
        quiet, padded = self._evidence.quiet_batch, self._evidence.expected.padded
        if found is None or not quiet.any():
            return
        ratios = replace(as_it_was, shape=found.scaled(1.0)).shaped(self._evidence)[quiet]
        level = float((padded[quiet] * ratios).sum() / max(padded[quiet].sum(), 1))
        if level > 0:
            was = self.error
            self._take(replace(as_it_was, shape=found.scaled(1 / level)))
            if self.error > max(was, _WORSE):
                self._take(as_it_was)

    @property
    def error(self) -> float:
        """How far the simulation of what ran is from what was measured: the larger error of mean and p99, a share."""
        return max(map(self.error_of, ("mean", "p99")))

    def error_of(self, key: str) -> float:
        """The same of one statistic."""
        was = self.measured[key]
        return abs(self.simulated[key] / was - 1.0) if was > 0 else 0.0

    def latencies(self, serving: Serving, within: Sequence[tuple[float, float]] = ()) -> Floats:
        """Nanoseconds by request, in the order of their arrival.

        :param within: stretches of the schedule in nanoseconds, each served on its own from an empty queue; the whole
            where there are none.
        """
        work = self._work
        if not within:
            return self._serve(serving, np.arange(len(work.index)), work.arrival)[1]
        parts = [np.flatnonzero((work.arrival >= begin) & (work.arrival < end)) for begin, end in within]
        return np.concatenate([self._serve(serving, part, work.arrival[part])[1] for part in parts])

    def repeated(self) -> Floats:
        """Nanoseconds that requests take by what comes again in each replay, by position in the schedule.

        That is what ran, without what the machine did to it (``host.*``); 0 for a request that is not known.
        """
        machine = frozenset(cause for cause in self._work.causes if cause.startswith(_OF_THE_MACHINE))
        found = np.zeros(len(self._schedule))
        found[self._work.index] = self.latencies(replace(self.serving, without=machine))
        return found

    def at_times(self, arrival: Floats, rotated: int = 0) -> tuple[Floats, Floats]:
        """Waits and latencies in nanoseconds where requests come at other times, under what ran.

        A wait is the time before ``prepare`` and from its end until the request's batch closes.

        :param arrival: of each position of the schedule, which begins again where there are more; those that have no
            latency in the record are taken for others of it.
        :param rotated: what disturbed batches comes so many requests later: as likely a run as it was.
        """
        index, n = self._work.index, len(self._work.index)
        if not n:
            return np.zeros(0), np.zeros(0)
        row = np.arange(max(len(self._schedule), int(index.max()) + 1)) % n
        row[index] = np.arange(n)
        return self._serve(self.serving, row[np.arange(len(arrival)) % len(row)], arrival, rotated)

    def statistics(self, serving: Serving, within: Sequence[tuple[float, float]] = ()) -> dict[str, float]:
        """Of :meth:`latencies`, in milliseconds."""
        return summarize_ms(self.latencies(serving, within))

    def alone(self, cost: BatchCost | None, within: Sequence[tuple[float, float]] = ()) -> dict[str, float]:
        """Statistics in milliseconds of requests that meet an empty queue and share no batch: the least there is."""
        work = self._work
        some = np.arange(len(work.index))
        if within:
            inside = [(work.arrival >= begin) & (work.arrival < end) for begin, end in within]
            some = np.flatnonzero(np.any(inside, axis=0))
        time_of = self._model.timer(work.inputs, cost)
        computed = np.array([time_of([row]) for row in some.tolist()], dtype=np.float64)
        return summarize_ms(work.prepare[some] + self._model.fixed + computed + work.finish[some])

    def cost(
        self, batches: Sequence[Sequence[int]], before: Sequence[float], after: Sequence[float]
    ) -> BatchCost | None:
        """How the time of batches changes, from some that were computed both ways; ``None`` where none was.

        :param batches: positions in the schedule; ``before`` and ``after`` nanoseconds of each, NaN where it failed.
        """
        place = self._place()
        usable = [k for k, batch in enumerate(batches) if all(position in place for position in batch)]
        what = [
            self._model.columns_of(self._work.inputs, [place[position] for position in batches[k]]) for k in usable
        ]
        return fit_cost(what, [before[k] for k in usable], [after[k] for k in usable])

    def probes(self, sizes: Sequence[int], most_s: float, *, seed: int = 0) -> list[list[int]]:
        """Batches that tell how the model computes, as positions in the schedule.

        Single requests from the quickest to the slowest, and two batches of each size, the smaller sizes first, as
        long as all together computed within ``most_s`` seconds; where that is short, two requests, two together, and
        one batch as large as they were.
        """
        work, draw = self._work, np.random.default_rng(seed)
        time_of = self._model.timer(work.inputs, None)
        alone = np.array([time_of([row]) for row in range(len(work.index))])
        order = np.argsort(alone, kind="stable")
        count = int(np.clip(most_s * 1e9 / 2 / max(float(np.mean(alone)), 1.0), 2, _SINGLES))
        singles = order[np.unique(np.linspace(0.02, 0.99, count) * (len(order) - 1)).astype(int)]
        batches = [[int(row)] for row in singles]
        possible = [size for size in sizes if size <= len(order)]
        largest = max((size for size in possible if size <= self.serving.max_batch), default=2)
        for size in possible:
            more = [draw.choice(len(order), size, replace=False).tolist() for _ in range(2)]
            if sum(map(time_of, [*batches, *more])) <= most_s * 1e9:
                batches += more
            elif size in (2, largest):
                batches += more[:1]
        return [work.index[batch].tolist() for batch in batches]

    def seconds(self, batches: Sequence[Sequence[int]]) -> float:
        """About how long the service computed on such batches, one after another."""
        place = self._place()
        time_of = self._model.timer(self._work.inputs, None)
        return sum(time_of([place[position] for position in batch]) for batch in batches) / 1e9

    def _place(self) -> dict[int, int]:
        """By position in the schedule, the row of a request."""
        return {position: row for row, position in enumerate(self._work.index.tolist())}

    def pace_of(self, record: RunRecord, serving: Serving, begin_ns: float = 0.0) -> float:
        """How much longer the batches of a replay took than is foretold of the same batches; NaN where none is known.

        :param record: of this traffic, or of a slice of it that begins at ``begin_ns`` of its schedule.
        :param serving: what it ran with.
        """
        work, rows, batches = self._work, record.requests, record.batches
        first = int(np.searchsorted(self._schedule, begin_ns))
        place = {position - first: row for row, position in enumerate(work.index.tolist())}
        members: dict[int, list[int]] = {}
        for position, batch in zip(rows["index"].tolist(), rows["batch_id"].tolist(), strict=True):
            members.setdefault(batch, []).append(place.get(position, -1))
        time_of, (_, pauses, slowed) = self._model.timer(work.inputs, serving.cost), work.met(serving.without)
        took = (batches["d2h_end_ns"] - batches["close_ns"]).astype(np.float64)
        shown = told = 0.0
        usable = (batches["warmup"] == 0) & (batches["retried"] == 0)
        for batch, held in zip(batches["batch_id"][usable].tolist(), took[usable].tolist(), strict=True):
            some = members.get(batch, [-1])
            if min(some) >= 0:
                shown += held - float(pauses[some].sum())
                told += (self._model.fixed + time_of(some)) * float(slowed[some].mean())
        return shown / told if told > 0 and shown > 0 else float("nan")

    def _serve(self, serving: Serving, some: Ints, arrival: Floats, rotated: int = 0) -> tuple[Floats, Floats]:
        """Waits and latencies of some requests that come at these times, each handed over as long after them."""
        work = self._work
        prepare, pauses, slowed = work.met(serving.without)
        prepare, pauses, slowed = prepare[some], np.roll(pauses, rotated)[some], np.roll(slowed, rotated)[some]
        handed = arrival + work.handed[some] - work.arrival[some]
        ready = begun_in_order(handed, prepare, serving.prepare_threads) + prepare
        closed, ended = _batched(
            serving,
            self._model,
            ready,
            work.inputs[some],
            pauses,
            slowed,
            work.finish[some],
            work.priority[some],
            work.length[some],
        )
        return closed - prepare - handed, ended - arrival


def removable(causes: Collection[str]) -> frozenset[str]:
    """Of some causes, those whose time a forecast can take out; the others are the policy's and the traffic's."""
    return frozenset(cause for cause in causes if not cause.startswith(_OF_THE_POLICY))


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchTime:
    """How long a batch computes for its members' inputs.

    :param fixed: nanoseconds that every batch takes beside its compute: collate, copies.
    :param bias: nanoseconds that computing takes beyond what the model of work says, where nothing disturbed it.
    :param coefficients: of the run's model of compute; empty where inputs tell nothing, then ``typical`` counts.
    :param typical: ``(max_size + 1,)`` by batch size.
    :param padded: the share of what padding to the largest member would add that was added.
    :param shape: what batches that were computed on purpose showed to be otherwise (:meth:`Forecast.learn`).
    """

    fixed: float
    bias: float
    coefficients: tuple[float, ...]
    typical: tuple[float, ...]
    padded: float
    shape: BatchCost | None = None

    @classmethod
    def of(cls, evidence: Evidence) -> _BatchTime:
        batches, members, expected = evidence.batches, evidence.members, evidence.expected
        size = np.maximum(batches["size"].astype(np.float64), 1.0)
        real = members.total(members.attributes)[:, 0]
        most = size * members.largest(members.attributes)[:, 0]
        added = np.maximum(padded_elements(batches) - real, 0.0)
        could = np.maximum(most - real, 0.0)
        held = (batches["d2h_end_ns"] - batches["close_ns"]).astype(np.float64)
        computed = (batches["compute_end_ns"] - batches["h2d_end_ns"]).astype(np.float64)
        quiet = evidence.quiet_batch
        beside, beyond = (held - computed)[quiet], (computed - expected.padded)[quiet]
        model: WorkModel = expected.models["compute"]
        return cls(
            fixed=max(float(np.median(beside)), 0.0) if len(beside) else 0.0,
            bias=max(float(np.median(beyond)), 0.0) if len(beyond) else 0.0,
            coefficients=tuple(model.coefficients.mean(axis=0).tolist()) if model.accepted else (),
            typical=tuple(expected.typical.astype(float).tolist()),
            padded=float(np.clip(added.sum() / could.sum(), 0.0, 1.0)) if could.sum() > 0 else 0.0,
        )

    def timer(self, inputs: Floats, cost: BatchCost | None) -> Callable[[Sequence[int]], float]:
        """Nanoseconds that a batch of some of these inputs computes, undisturbed.

        :param inputs: ``(n, g)``; the result takes rows of it.
        """
        rows, known, shape = inputs.tolist(), self.coefficients, self.shape

        def time_of(members: Sequence[int]) -> float:
            total, elements, top = self._held(rows, members)
            size, longest = len(members), top[1]
            if known:
                took = self.bias + sum(map(float.__mul__, known, padded_row(size, total, elements, top)))
            else:
                took = self.bias + self.typical[min(size, len(self.typical) - 1)]
            for each in (shape, cost):
                if each is not None:
                    took *= each.ratio(columns(size, elements, longest, top[2:]))
            return took

        return time_of

    def shaped(self, evidence: Evidence) -> Floats:
        """``(m,)`` by recorded batch, what its shape makes of the model's time."""
        if self.shape is None:
            return np.ones(len(evidence.batches["size"]))
        sizes, elements = evidence.batches["size"].tolist(), padded_elements(evidence.batches).tolist()
        tops = evidence.members.largest(evidence.members.attributes).tolist()
        what = zip(sizes, elements, tops, strict=True)
        return np.array([self.shape.ratio(columns(size, padded, top[1], top[2:])) for size, padded, top in what])

    def columns_of(self, inputs: Floats, members: Sequence[int]) -> list[float]:
        """:func:`latfix.profilers.forecast.batch_cost.columns` of a batch of some of these inputs."""
        _, elements, top = self._held(inputs.tolist(), members)
        return columns(len(members), elements, top[1], top[2:])

    def _held(self, rows: list[list[float]], members: Sequence[int]) -> tuple[float, float, list[float]]:
        """Elements that a batch was brought, those that it computes on, and the largest of each attribute."""
        if len(members) == 1:
            only = rows[members[0]]
            return only[0], only[0], only
        some = [rows[member] for member in members]
        total, top = sum(row[0] for row in some), [max(column) for column in zip(*some, strict=True)]
        return total, total + self.padded * (len(some) * top[0] - total), top


def _work(evidence: Evidence, books: Books, model: _BatchTime) -> _Work:
    rows, line = evidence.rows, books.line
    chosen = np.flatnonzero((rows["warmup"] == 0) & (evidence.batch_of >= 0) & (rows["status"] == Status.OK))
    chosen = chosen[np.argsort(line.handed[chosen], kind="stable")][:MOST]
    batches = evidence.batches
    held = (batches["d2h_end_ns"] - batches["close_ns"] + evidence.units["lag"].wall).astype(np.float64)
    undisturbed = np.maximum(model.fixed + (model.bias + evidence.expected.padded) * model.shaped(evidence), 1.0)
    beyond = held - undisturbed
    # What the causes own of it; the rest is nobody's and stays.
    causes = tuple(cause.id for cause in CAUSES)
    known = np.flatnonzero(evidence.head >= 0)
    heads = evidence.head[known]
    owned = np.zeros((len(causes), len(held)))
    mine = np.isin(causes, sorted(removable(causes)))[:, None]
    owned[:, known] = np.where(mine, np.maximum(line.batch_extra.T[:, heads], 0.0), 0.0)
    total = owned.sum(axis=0)
    owned *= np.where(total > 0, np.minimum(np.maximum(beyond, 0.0) / np.where(total > 0, total, 1.0), 1.0), 1.0)
    rest = beyond - owned.sum(axis=0)
    # A pause is as long for whomever it stops.
    machine = np.array([cause.startswith(_OF_THE_MACHINE) for cause in causes])[:, None]
    pauses = np.zeros((len(causes), len(evidence.ok)))
    pauses[:, heads] = np.where(machine, 0.0, owned)[:, known]
    slowed = np.concatenate([np.where(machine, owned, 0.0), rest[None]]) / undisturbed
    prepare = evidence.units["prepare"].wall.astype(np.float64)
    brought = np.clip(line.prepare_extra.T, 0.0, prepare)
    return _Work(
        index=rows["index"][chosen],
        arrival=rows["arrival_ns"][chosen].astype(np.float64),
        handed=line.handed[chosen],
        prepare=prepare[chosen],
        finish=evidence.units["finish"].wall[chosen].astype(np.float64),
        inputs=evidence.members.attributes[chosen],
        pauses=pauses[:, chosen],
        slowed=slowed[:, evidence.batch_of[chosen]],
        prepare_extra=brought[:, chosen],
        priority=evidence.priority[chosen],
        length=rows["bucket_length"][chosen],
        causes=causes,
    )


def _batched(
    serving: Serving,
    model: _BatchTime,
    ready: Floats,
    inputs: Floats,
    pauses: Floats,
    slowed: Floats,
    finish: Floats,
    priority: Ints,
    length: Ints,
) -> tuple[Floats, Floats]:
    """When the batch of each request was closed, and when it was finished."""
    order = np.argsort(ready, kind="stable")
    when, inputs, finishing = ready[order], inputs[order], finish[order].tolist()
    time_of = model.timer(inputs, serving.cost)
    stopped: list[float] = pauses[order].tolist()
    slower: list[float] = slowed[order].tolist()
    finished, shut = [0.0] * len(order), [0.0] * len(order)

    def finish_batch(members: Sequence[int], closed: float) -> float:
        # Its members met the machine as it was then: a batch of others meets the mean of what they did.
        pace = serving.pace * sum(map(slower.__getitem__, members)) / len(members)
        clock = closed + (model.fixed + time_of(members)) * pace + sum(map(stopped.__getitem__, members))
        for member in members:
            shut[member] = closed
            finished[member] = clock = clock + finishing[member]
        return clock

    policy = Policy(
        workers=serving.workers,
        max_batch=serving.max_batch,
        window=serving.window_ns,
        by_length=serving.by_length,
    )
    queue = discipline_of(policy, when, priority[order], length[order], finish_batch)
    form_batches(when.tolist(), queue, serving.workers)
    served = np.empty((2, len(order)))
    served[:, order] = shut, finished
    return served[0], served[1]
