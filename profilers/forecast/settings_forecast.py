"""Predicted latency of the recorded traffic under other settings: a simulation of the service.

Each request has its measured properties: when it was sent, its own ``prepare`` and ``finish``, its inputs, and what
its batch took beyond its inputs' need (pauses, faults, waits for a core). The service's policy runs over them on
simulated time, with new batches whose compute comes from the run's model of work. Predictions are calibrated by the
simulation of the settings that ran; :attr:`Forecast.error` is its distance from the measured latency. Requests that
timed out are simulated, too: without them, a service is less busy than it was. Their latency is how long they waited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.attribution.ledger import LedgerContext, make_books
from latfix.profilers.causes import CAUSES
from latfix.profilers.evidence.expected_work import padded_row
from latfix.profilers.evidence.units import Evidence, gather
from latfix.profilers.evidence.work_model import WorkModel
from latfix.profilers.forecast.batch_cost import BatchCost, columns, fit_cost
from latfix.queueing.adaptive_batching import BatchController, Bounds, Seen
from latfix.queueing.length_buckets import padded_elements, padded_sides
from latfix.queueing.queue_simulator import (
    Policy,
    SimulatedBatch,
    begun_in_order,
    discipline_of,
    form_batches,
    steered,
)
from latfix.queueing.serving_order import MOST_SHARES
from latfix.queueing.stepping_queue import serve_in_steps
from latfix.run_record.run_record import RunRecord
from latfix.stages import Status
from latfix.statistics.latency_summary import summarize_ms

#: At most the first so many requests are simulated; they represent the run.
_MOST = 20_000
#: Effects of the machine differ in each replay, and are proportional to a batch's compute.
OF_THE_MACHINE = frozenset(cause.id for cause in CAUSES if cause.id.startswith("host."))
#: Causes that the simulation reproduces by itself; removing them requires other settings.
_OF_THE_POLICY = ("traffic.", "batching.", "input.")
#: Error up to which a learned batch time is accepted, even if the error was smaller before.
_TOLERATED = 0.1
#: Requests whose time with others like them shows how much longer a step takes if more share it.
_LIKE = 64
#: Single requests among :meth:`Forecast.probes`.
_SINGLES = 6


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a service takes relative to the prediction, as replays show (:meth:`Forecast.pace_of`).

    :param batches: factor of batch times, NaN if unknown.
    :param beside: factor of the time in ``prepare`` and ``finish``, which may wait for cores that the model uses; NaN
        if unknown.
    """

    batches: float = 1.0
    beside: float = 1.0

    @classmethod
    def typical(cls, shown: Sequence[Pace]) -> Pace:
        """The geometric means of those that are known; 1 without any."""
        known = np.array([(each.batches, each.beside) for each in shown]).reshape(-1, 2)
        return cls(*(math.exp(np.log(column[column > 0]).sum() / max((column > 0).sum(), 1)) for column in known.T))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How requests are served. The first fields are those of the runner's settings.

    :param window_ns: how long the oldest request waits for more requests to fill the batch.
    :param adaptive: a controller moves the limits of batches, of their size and window, within these bounds.
    :param by_length: a batch takes requests of similar length as its first.
    :param in_steps: requests join and leave between the steps of a batch.
    :param shortest: requests with the least expected compute leave the queue first, else in order of arrival.
    :param ageing_ns: time in which a waiting request gains a class, or the work of a typical request; 0 for never.
    :param cost: change of the batches' time; ``None`` for the recorded time.
    :param pace: how long it takes relative to the prediction.
    :param warm_shapes: input sizes run at warm-up, spread over those of the traffic.
    :param without: ids of causes whose time is removed from requests and batches.
    """

    max_batch: int
    window_ns: float
    workers: int
    prepare_threads: int
    adaptive: Bounds | None = None
    by_length: bool = False
    in_steps: bool = False
    shortest: bool = False
    ageing_ns: int = 0
    cost: BatchCost | None = None
    pace: Pace = Pace()
    warm_shapes: int = 0
    without: frozenset[str] = frozenset()


class _Work:
    """Measured properties of requests. Nanoseconds, ``(n,)`` in the order in which they were sent.

    :ivar index: position in the schedule.
    :ivar inputs: ``(n, g + 2)`` elements, length, features, then the sides by which batches are padded.
    :ivar pauses: ``(k, n)`` pauses of the request's batch by cause, at the batch's head; ``prepare_extra`` the same
        for ``prepare``.
    :ivar slowed: ``(k + 1, n)`` slowdown of its batch by cause, as a share of its undisturbed time, at each member;
        the last row has no cause and either sign.
    :ivar length: the key of batches by length.
    :ivar patience: how long its caller waits; infinite without a limit.
    :ivar shapes: how many different sizes of inputs there are.
    """

    def __init__(self, evidence: Evidence, books: LedgerContext, model: _BatchTime, patience: Floats) -> None:
        rows, line = evidence.rows, books.line
        chosen = np.flatnonzero(_followed(evidence))
        chosen = chosen[np.argsort(line.handed[chosen], kind="stable")][:_MOST]
        batches = evidence.batches
        held = (batches["d2h_end_ns"] - batches["close_ns"] + evidence.units["lag"].wall).astype(np.float64)
        undisturbed = np.maximum(model.fixed + (model.bias + evidence.expected.padded) * model.shaped(evidence), 1.0)
        beyond = held - undisturbed
        # The part owned by removable causes; the rest stays.
        causes = tuple(cause.id for cause in CAUSES)
        known = np.flatnonzero(evidence.head >= 0)
        heads = evidence.head[known]
        owned = np.zeros((len(causes), len(held)))
        mine = np.isin(causes, sorted(removable(causes)))[:, None]
        owned[:, known] = np.where(mine, np.maximum(line.batch_extra.T[:, heads], 0.0), 0.0)
        total = owned.sum(axis=0)
        owned *= np.where(total > 0, np.minimum(np.maximum(beyond, 0.0) / np.where(total > 0, total, 1.0), 1.0), 1.0)
        rest = beyond - owned.sum(axis=0)
        # A pause has the same length for any batch; the machine slows a batch in proportion to its compute.
        machine = np.array([cause in OF_THE_MACHINE for cause in causes])[:, None]
        pauses = np.zeros((len(causes), len(evidence.ok)))
        pauses[:, heads] = np.where(machine, 0.0, owned)[:, known]
        slowed = np.concatenate([np.where(machine, owned, 0.0), rest[None]]) / undisturbed
        prepare = evidence.units["prepare"].wall.astype(np.float64)
        brought = np.clip(line.prepare_extra.T, 0.0, prepare)
        self.index = rows["index"][chosen]
        self.arrival = rows["arrival_ns"][chosen].astype(np.float64)
        self.handed = line.handed[chosen]
        self.prepare = prepare[chosen]
        batch, finish = evidence.batch_of[chosen], evidence.units["finish"].wall[chosen].astype(np.float64)
        served = batch >= 0
        self.finish = np.where(served, finish, np.median(finish[served]) if served.any() else 0.0)
        self.inputs = np.hstack([evidence.members.attributes, padded_sides(rows)])[chosen]
        self.pauses = pauses[:, chosen]
        self.slowed = np.append(slowed, np.zeros((len(slowed), 1)), axis=1)[:, batch]
        self.prepare_extra = brought[:, chosen]
        self.priority = evidence.priority[chosen]
        self.length = rows["bucket_length"][chosen]
        self.shapes = len(np.unique(padded_sides(rows)[chosen], axis=0))
        self.patience = patience[self.index]
        self.causes = causes

    def met(self, without: Collection[str]) -> tuple[Floats, Floats, Floats]:
        """Without some causes: ``prepare``, pauses, and the slowdown factor of batches."""
        kept = np.array([cause not in without for cause in self.causes], dtype=np.float64)
        prepare = np.maximum(self.prepare - (1.0 - kept) @ self.prepare_extra, 0.0)
        return prepare, kept @ self.pauses, 1.0 + np.append(kept, 1.0) @ self.slowed


def _followed(evidence: Evidence) -> Bools:
    """``(n,)`` True for requests that are simulated: answered, or timed out after ``prepare``, so of a known size."""
    rows = evidence.rows
    answered = (evidence.batch_of >= 0) & (rows["status"] == Status.OK)
    given_up = (rows["prepare_ns"] > 0) & (rows["status"] == Status.TIMEOUT)
    return np.asarray((rows["warmup"] == 0) & (answered | given_up), dtype=np.bool_)


class Forecast:
    """Latencies of a run's requests under other settings.

    :param books: of the run, if already made.
    """

    def __init__(
        self, record: RunRecord, *, evidence: Evidence | None = None, books: LedgerContext | None = None
    ) -> None:
        evidence = gather(record) if evidence is None else evidence
        books = make_books(evidence) if books is None else books
        setup = evidence.setup
        self.serving = Serving(
            max_batch=setup.max_batch,
            window_ns=float(setup.window_ns),
            workers=setup.workers,
            prepare_threads=setup.prepare_threads,
            adaptive=Bounds.of(record.meta.settings),
            by_length=setup.by_length,
            shortest=record.meta.settings.schedule == "shortest",
            ageing_ns=setup.ageing_ns,
        )
        self._evidence, self._books = evidence, books
        self._schedule = record.traffic.arrival_ns
        limit_ms = record.traffic.deadline_ms
        usual_ms = record.meta.settings.timeout_ms or math.inf
        self._patience = 1e6 * np.where(np.isnan(limit_ms), usual_ms, limit_ms)
        self.measured = summarize_ms(evidence.rows["latency_ns"][_followed(evidence)])
        self._use(_BatchTime.of(evidence))

    def _use(self, model: _BatchTime) -> None:
        self._model, self._work = model, _Work(self._evidence, self._books, model, self._patience)
        self.simulated = summarize_ms(self.latencies(self.serving))

    def learn(self, batches: Sequence[Sequence[int]], took: Sequence[float]) -> None:
        """Learn how a batch's time depends on its contents, from batches that the service computed for that purpose.

        A run has only the batches that it formed: if all were full, the time of a single request is unknown. The
        total time of the recorded batches stays the same, because under traffic the service computes as recorded.

        :param batches: positions in the schedule, as for :meth:`cost`; ``took`` nanoseconds of each.
        """
        original, rows = self._model, self._rows(batches)
        time_of = original.timer(self._work.inputs, None)
        predicted = [np.nan if members is None else time_of(members) for members in rows]
        shape = self.cost(batches, predicted, took)
        quiet, padded = self._evidence.quiet_batch, self._evidence.expected.padded
        if shape is None or not quiet.any():
            return
        ratios = replace(original, shape=shape.scaled(1.0)).shaped(self._evidence)[quiet]
        level = float((padded[quiet] * ratios).sum() / max(padded[quiet].sum(), 1))
        if level > 0:
            before = self.error
            self._use(replace(original, shape=shape.scaled(1 / level)))
            if self.error > max(before, _TOLERATED):
                self._use(original)

    @property
    def error(self) -> float:
        """Relative error of the simulation of the settings that ran: the larger of mean and p99."""
        return max(map(self.error_of, ("mean", "p99")))

    def error_of(self, key: str) -> float:
        """Relative error of one statistic."""
        measured = self.measured[key]
        return abs(self.simulated[key] / measured - 1.0) if measured > 0 else 0.0

    def latencies(self, serving: Serving, within: Sequence[tuple[float, float]] = ()) -> Floats:
        """Nanoseconds by request, in order of arrival.

        :param within: stretches of the schedule in nanoseconds, each simulated from an empty queue; by default the
            whole schedule.
        """
        work = self._work
        if not within:
            return self._serve(serving, np.arange(len(work.index)), work.arrival)[1]
        parts = [np.flatnonzero((work.arrival >= begin) & (work.arrival < end)) for begin, end in within]
        return np.concatenate([self._serve(serving, part, work.arrival[part])[1] for part in parts])

    def repeated(self) -> Floats:
        """The repeatable latency of requests by position in the schedule, nanoseconds.

        The settings that ran, without effects of the machine (``host.*``); 0 for unknown requests.
        """
        found = np.zeros(len(self._schedule))
        found[self._work.index] = self.latencies(replace(self.serving, without=OF_THE_MACHINE))
        return found

    def at_times(self, arrival: Floats, rotated: int = 0) -> tuple[Floats, Floats]:
        """Waits and latencies in nanoseconds if requests arrive at other times, with the settings that ran.

        No caller gives up: who does has waited at least as long. A wait is the time before ``prepare`` and from its
        end until the request's batch closes.

        :param arrival: of each position of the schedule, which repeats if there are more; positions without a latency
            in the record use other requests' properties.
        :param rotated: number of requests by which disturbances are shifted, for another equally likely run.
        """
        index, n = self._work.index, len(self._work.index)
        if not n:
            return np.zeros(0), np.zeros(0)
        row = np.arange(max(len(self._schedule), int(index.max()) + 1)) % n
        row[index] = np.arange(n)
        return self._serve(self.serving, row[np.arange(len(arrival)) % len(row)], arrival, rotated, patient=True)

    def statistics(self, serving: Serving, within: Sequence[tuple[float, float]] = ()) -> dict[str, float]:
        """Summary of :meth:`latencies`, in milliseconds."""
        return summarize_ms(self.latencies(serving, within))

    def alone(self, cost: BatchCost | None) -> dict[str, float]:
        """Summary in milliseconds of requests without queue and without batching: the lower bound."""
        work = self._work
        every = np.arange(len(work.index))
        return summarize_ms(work.prepare + self._in_batches_of_one(every, cost) + work.finish)

    def _in_batches_of_one(self, some: Ints, cost: BatchCost | None) -> Floats:
        """Nanoseconds of a batch of each request alone."""
        time_of = self._model.timer(self._work.inputs[some], cost)
        return self._model.fixed + np.array([time_of([row]) for row in range(len(some))], dtype=np.float64)

    def cost(
        self, batches: Sequence[Sequence[int]], before: Sequence[float], after: Sequence[float]
    ) -> BatchCost | None:
        """The change of batch times, from batches that were computed both ways; ``None`` without any.

        :param batches: positions in the schedule; ``before`` and ``after`` nanoseconds of each, NaN if it failed.
        """
        known = [(k, members) for k, members in enumerate(self._rows(batches)) if members is not None]
        what = [self._model.columns_of(self._work.inputs, members) for _, members in known]
        return fit_cost(what, [before[k] for k, _ in known], [after[k] for k, _ in known])

    def probes(self, sizes: Sequence[int], most_s: float) -> list[list[int]]:
        """Batches to compute in order to learn batch times, as positions in the schedule.

        Single requests from the fastest to the slowest, and two batches of each size, smaller sizes first, as long as
        all take at most ``most_s`` seconds. At least two single requests, one batch of two, and one of the largest
        size that ran.
        """
        work, draw = self._work, np.random.default_rng(0)
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
        """Predicted compute time of these batches, one after another."""
        time_of = self._model.timer(self._work.inputs, None)
        return sum(time_of(members) for members in self._rows(batches) if members is not None) / 1e9

    def _rows(self, batches: Sequence[Sequence[int]]) -> list[list[int] | None]:
        """The requests of each batch, given as positions in the schedule; ``None`` if one is unknown."""
        place = {position: row for row, position in enumerate(self._work.index.tolist())}
        found = ([place.get(position, -1) for position in batch] for batch in batches)
        return [members if min(members, default=0) >= 0 else None for members in found]

    def pace_of(self, record: RunRecord, serving: Serving, begin_ns: float = 0.0) -> Pace:
        """How long a replay took relative to the prediction.

        :param record: of this traffic, or of a slice of it that begins at ``begin_ns`` of its schedule.
        :param serving: the replay's settings.
        """
        work, rows, batches = self._work, record.requests, record.batches
        first = int(np.searchsorted(self._schedule, begin_ns))
        place = {position - first: row for row, position in enumerate(work.index.tolist())}
        prepare, pauses, slowed = work.met(serving.without)
        ended = (rows["warmup"] == 0) & (rows["status"] == Status.OK) & np.isin(rows["index"], list(place))
        beside = (
            rows["prepare_ns"] - rows["prepare_wait_ns"] + np.maximum(rows["finish_ns"] - rows["finish_wait_ns"], 0)
        )
        expected = (prepare + work.finish)[[place[position] for position in rows["index"][ended].tolist()]]
        members: dict[int, list[int]] = {}
        for position, batch in zip(rows["index"].tolist(), rows["batch_id"].tolist(), strict=True):
            members.setdefault(batch, []).append(place.get(position, -1))
        time_of = self._timer(work.inputs, serving)
        took = (batches["d2h_end_ns"] - batches["close_ns"]).astype(np.float64)
        # A request that shared its steps is a batch of its own, and its size is how many shared them.
        stretch = _stretch(time_of, serving.max_batch, len(work.index)) if serving.in_steps else None
        measured = predicted = 0.0
        usable = (batches["warmup"] == 0) & (batches["retried"] == 0)
        known = zip(
            *(column[usable].tolist() for column in (batches["batch_id"], batches["size"], took)), strict=True
        )
        for batch, size, held in known:
            some = members.get(batch, [-1])
            if min(some) >= 0:
                measured += held - float(pauses[some].sum())
                shared = 1.0 if stretch is None else stretch[min(size, serving.max_batch)]
                predicted += (self._model.fixed + time_of(some)) * float(slowed[some].mean()) * shared
        return Pace(_over(measured, predicted), _over(float(beside[ended].sum()), float(expected.sum())))

    def _serve(
        self, serving: Serving, some: Ints, arrival: Floats, rotated: int = 0, *, patient: bool = False
    ) -> tuple[Floats, Floats]:
        """Waits and latencies of some requests that arrive at these times, each sent with its recorded delay.

        :param patient: no caller gives up.
        """
        work, model = self._work, self._model
        prepare, pauses, slowed = work.met(serving.without)
        prepare = serving.pace.beside * prepare[some]
        handed = arrival + work.handed[some] - work.arrival[some]
        ready = begun_in_order(handed, prepare, serving.prepare_threads) + prepare
        order = np.argsort(ready, kind="stable")
        when, turn = ready[order], some[order]
        time_of = self._timer(work.inputs[turn], serving)
        finishing: list[float] = (serving.pace.beside * work.finish[turn]).tolist()
        stopped: list[float] = np.roll(pauses, rotated)[turn].tolist()
        slower: list[float] = np.roll(slowed, rotated)[turn].tolist()
        closed, ended = [0.0] * len(order), [0.0] * len(order)
        expires: list[float] = (arrival[order] + (math.inf if patient else work.patience[turn])).tolist()

        def finish_batch(members: Sequence[int], closing: float) -> float:
            if closing > min(map(expires.__getitem__, members)):
                for member in members:
                    closed[member] = ended[member] = closing
                members = [member for member in members if closing <= expires[member]]
                if not members:
                    return closing
            # The machine's slowdown is recorded by request: a new batch gets the mean of its members'.
            pace = serving.pace.batches * sum(map(slower.__getitem__, members)) / len(members)
            clock = closing + (model.fixed + time_of(members)) * pace + sum(map(stopped.__getitem__, members))
            for member in members:
                closed[member] = closing
                ended[member] = clock = clock + finishing[member]
            return clock

        alone = self._in_batches_of_one(turn, serving.cost) if serving.in_steps or serving.shortest else np.zeros(0)
        classes = work.priority[turn].astype(np.float64)
        if serving.shortest:
            share = alone / alone.mean()
            # As the service's own backlog does it.
            classes = classes + np.minimum(share, MOST_SHARES) if serving.ageing_ns else classes * share.max() + share
        if serving.in_steps:
            needs = alone * serving.pace.batches * slower + stopped
            keys = when + serving.ageing_ns * classes if serving.ageing_ns else classes
            stretch = _stretch(time_of, serving.max_batch, len(order))
            closed, last_step = serve_in_steps(when, keys, needs, stretch, serving.workers)
            ended = (np.array(last_step) + finishing).tolist()
        else:
            policy = Policy(
                workers=serving.workers,
                max_batch=serving.max_batch,
                window=serving.window_ns,
                by_length=serving.by_length,
                ageing=float(serving.ageing_ns),
            )
            queue = discipline_of(policy, when, classes, work.length[turn], finish_batch)
            if serving.adaptive is not None:
                controller, sent = BatchController(serving.adaptive), arrival[order].tolist()

                def observe(batch: SimulatedBatch) -> None:
                    controller.observe(Seen.of(batch, sent))

                queue = steered(queue, controller, observe)
            form_batches(when.tolist(), queue, serving.workers)
        served = np.empty((2, len(order)))
        served[:, order] = closed, ended
        return served[0] - prepare - handed, served[1] - arrival

    def _timer(self, inputs: Floats, serving: Serving) -> Callable[[Sequence[int]], float]:
        """The time of a service's batches in turn, including what new shapes take longer unless warm-up ran all."""
        time_of, cost = self._model.timer(inputs, serving.cost), serving.cost
        if cost is None or not cost.new_shape_ns or serving.warm_shapes >= self._work.shapes or serving.in_steps:
            return time_of
        rows, seen, longer = inputs.tolist(), set[tuple[int, float]](), cost.new_shape_ns

        def in_turn(members: Sequence[int]) -> float:
            shape = len(members), self._model.held(rows, members)[1]
            new = shape not in seen
            seen.add(shape)
            return time_of(members) + longer * new

        return in_turn


def _over(measured: float, predicted: float) -> float:
    """Their ratio; NaN unless both are positive."""
    return measured / predicted if predicted > 0 and measured > 0 else math.nan


def _stretch(time_of: Callable[[Sequence[int]], float], most: int, requests: int) -> list[float]:
    """How much longer a step takes, by the number of requests that share it."""
    some = np.unique(np.linspace(0, requests - 1, min(requests, _LIKE))).astype(int).tolist()
    alone = np.array([time_of([row]) for row in some])
    shared = [np.array([time_of([row] * size) for row in some]) / alone for size in range(1, most + 1)]
    return list(accumulate([1.0, *(float(np.median(each)) for each in shared)], max))


def removable(causes: Collection[str]) -> frozenset[str]:
    """The causes whose time a forecast can remove; the others depend on policy and traffic."""
    return frozenset(cause for cause in causes if not cause.startswith(_OF_THE_POLICY))


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchTime:
    """The duration of a batch by its members' inputs.

    :param fixed: nanoseconds of every batch in addition to compute: collate, copies.
    :param bias: nanoseconds of undisturbed compute beyond the model of work.
    :param coefficients: of the run's model of compute; empty if inputs do not explain it, then ``typical`` is used.
    :param typical: ``(max_size + 1,)`` by batch size.
    :param padded: padding in the run, as a share of padding to the largest side of any member.
    :param shape: correction learned from batches computed on purpose (:meth:`Forecast.learn`).
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
        most = size * members.largest(padded_sides(evidence.rows)).prod(axis=1)
        added = np.maximum(padded_elements(batches) - real, 0.0)
        could = np.maximum(most - real, 0.0)
        held = (batches["d2h_end_ns"] - batches["close_ns"]).astype(np.float64)
        computed = (batches["compute_end_ns"] - batches["h2d_end_ns"]).astype(np.float64)
        quiet = evidence.quiet_batch
        other, beyond = (held - computed)[quiet], (computed - expected.padded)[quiet]
        model: WorkModel = expected.models["compute"]
        return cls(
            fixed=max(float(np.median(other)), 0.0) if len(other) else 0.0,
            bias=max(float(np.median(beyond)), 0.0) if len(beyond) else 0.0,
            coefficients=tuple(model.coefficients.mean(axis=0).tolist()) if model.accepted else (),
            typical=tuple(expected.typical.astype(float).tolist()),
            padded=float(np.clip(added.sum() / could.sum(), 0.0, 1.0)) if could.sum() > 0 else 0.0,
        )

    def timer(self, inputs: Floats, cost: BatchCost | None) -> Callable[[Sequence[int]], float]:
        """A function from rows of ``inputs`` to the undisturbed compute time of a batch of them, nanoseconds.

        :param inputs: of some requests, as :class:`_Work` has them.
        """
        rows, known, shape = inputs.tolist(), self.coefficients, self.shape

        def time_of(members: Sequence[int]) -> float:
            total, elements, top = self.held(rows, members)
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
        """``(m,)`` by recorded batch, the ratio of ``shape``."""
        if self.shape is None:
            return np.ones(len(evidence.batches["size"]))
        sizes, elements = evidence.batches["size"].tolist(), padded_elements(evidence.batches).tolist()
        tops = evidence.members.largest(evidence.members.attributes).tolist()
        what = zip(sizes, elements, tops, strict=True)
        return np.array([self.shape.ratio(columns(size, padded, top[1], top[2:])) for size, padded, top in what])

    def columns_of(self, inputs: Floats, members: Sequence[int]) -> list[float]:
        """:func:`latfix.profilers.forecast.batch_cost.columns` of a batch of some of these inputs."""
        _, elements, top = self.held(inputs.tolist(), members)
        return columns(len(members), elements, top[1], top[2:])

    def held(self, rows: list[list[float]], members: Sequence[int]) -> tuple[float, float, list[float]]:
        """Real and padded elements of a batch, and the maximum of each attribute."""
        if len(members) == 1:
            only = rows[members[0]]
            return only[0], only[0], only[:-2]
        some = [rows[member] for member in members]
        total, (*top, width, height) = sum(row[0] for row in some), map(max, zip(*some, strict=True))
        return total, total + self.padded * (len(some) * width * height - total), top
