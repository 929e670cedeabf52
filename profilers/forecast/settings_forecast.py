"""Predicted latency of the recorded traffic under other settings: a simulation of the service.

Each request has its measured properties: when it was sent, its own ``prepare`` and ``finish``, its inputs, and what
its batch took beyond its inputs' need (pauses, faults, waits for a core). The service's policy runs over them on
simulated time, with new batches whose compute comes from the run's model of work. Predictions are calibrated by the
simulation of the settings that ran; :attr:`Forecast.error` is its distance from the measured latency. Requests that
timed out are simulated, too: without them, a service is less busy than it was. Their latency is how long they waited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.attribution.ledger import make_books
from latfix.profilers.evidence.units import gather
from latfix.profilers.forecast.batch_cost import BatchCost, fit_cost
from latfix.profilers.forecast.batch_time import BatchTime
from latfix.profilers.forecast.recorded_work import OF_THE_MACHINE, RecordedWork, followed
from latfix.queueing.adaptive_batching import BatchController, Bounds, Seen
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


class Forecast:
    """Latencies of a run's requests under other settings."""

    def __init__(self, record: RunRecord) -> None:
        evidence = gather(record)
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
        self._evidence, self._books = evidence, make_books(evidence)
        self._schedule, self._ids = record.traffic.arrival_ns, record.traffic.ids
        limit_ms = record.traffic.deadline_ms
        usual_ms = record.meta.settings.timeout_ms or math.inf
        self._patience = 1e6 * np.where(np.isnan(limit_ms), usual_ms, limit_ms)
        self.measured = summarize_ms(evidence.rows["latency_ns"][followed(evidence)])
        self._use(BatchTime.of(evidence))

    def _use(self, model: BatchTime) -> None:
        self._model, self._work = model, RecordedWork(self._evidence, self._books, model, self._patience)
        self.simulated = summarize_ms(self.latencies(self.serving))

    def learn(self, batches: Sequence[Sequence[int]], took: Sequence[float], new_shape_ns: float = 0.0) -> None:
        """Learn how a batch's time depends on its contents, from batches that the service computed for that purpose.

        A run has only the batches that it formed: if all were full, the time of a single request is unknown; if all
        had new shapes, the time of a known one. The total time of the recorded batches stays the same, because under
        traffic the service computes as recorded.

        :param batches: positions in the schedule, as for :meth:`cost`; ``took`` nanoseconds of each, of known shape.
        :param new_shape_ns: how much longer the first batch of a new shape took.
        """
        original, rows = self._model, self._rows(batches)
        time_of = original.timer(self._work.inputs, None)
        predicted = [np.nan if members is None else time_of(members) for members in rows]
        shape = self.cost(batches, predicted, took)
        quiet, needed = self._evidence.quiet_batch, original.bias + self._evidence.expected.padded
        if shape is None or not quiet.any():
            return
        ratios = replace(original, shape=shape.scaled(1.0)).shaped(self._evidence)[quiet]
        new = new_shape_ns * np.count_nonzero(self._evidence.batches["first_shape"][quiet])
        known = float(needed[quiet].sum()) - new
        if known > 0 and (level := float((needed[quiet] * ratios).sum()) / known) > 0:
            before = self.error
            self._use(replace(original, shape=shape.scaled(1 / level), new_shape_ns=new_shape_ns))
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
        """Summary in milliseconds of requests without queue, batching and effects of the machine: the lower bound."""
        prepare, every = self._work.met(OF_THE_MACHINE)[0], np.arange(len(self._work.index))
        return summarize_ms(prepare + self._in_batches_of_one(every, cost) + self._work.finish)

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

    def pace_of(self, record: RunRecord, serving: Serving) -> Pace:
        """How long a replay took relative to the prediction.

        :param record: of this traffic, or of a part of it.
        :param serving: the replay's settings.
        """
        work, rows, batches = self._work, record.requests, record.batches
        row_of = {self._ids[position]: row for row, position in enumerate(work.index.tolist())}
        place = {position: row_of[name] for position, name in enumerate(record.traffic.ids) if name in row_of}
        prepare, pauses, slowed = work.met(serving.without)
        ended = (rows["warmup"] == 0) & (rows["status"] == Status.OK) & np.isin(rows["index"], list(place))
        beside = (
            rows["prepare_ns"] - rows["prepare_wait_ns"] + np.maximum(rows["finish_ns"] - rows["finish_wait_ns"], 0)
        )
        expected = (prepare + work.finish)[[place[position] for position in rows["index"][ended].tolist()]]
        members: dict[int, list[int]] = {}
        for position, batch in zip(rows["index"].tolist(), rows["batch_id"].tolist(), strict=True):
            members.setdefault(batch, []).append(place.get(position, -1))
        time_of, new_shape = self._model.timer(work.inputs, serving.cost), self._new_shape_ns(serving)
        took = (batches["d2h_end_ns"] - batches["close_ns"]).astype(np.float64)
        # A request that shared its steps is a batch of its own, and its size is how many shared them.
        stretch = _stretch(time_of, serving.max_batch, len(work.index)) if serving.in_steps else None
        running = _running_beside(batches["close_ns"], batches["d2h_end_ns"])
        slowed_by, first = 1.0 + _each_slows(serving) * running, batches["first_shape"]
        measured = predicted = 0.0
        usable = (batches["warmup"] == 0) & (batches["retried"] == 0)
        columns = (batches["batch_id"], batches["size"], took, first, slowed_by)
        for batch, size, held, is_first, longer in zip(*(each[usable].tolist() for each in columns), strict=True):
            some = members.get(batch, [-1])
            if min(some) >= 0:
                measured += held - float(pauses[some].sum())
                shared = 1.0 if stretch is None else stretch[min(size, serving.max_batch)]
                needed = (self._model.fixed + time_of(some) + new_shape * is_first) * longer
                predicted += needed * float(slowed[some].mean()) * shared
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

        running, each_slows = list[float](), _each_slows(serving)

        def finish_batch(members: Sequence[int], closing: float) -> float:
            if closing > min(map(expires.__getitem__, members)):
                for member in members:
                    closed[member] = ended[member] = closing
                members = [member for member in members if closing <= expires[member]]
                if not members:
                    return closing
            # The machine's slowdown is recorded by request: a new batch gets the mean of its members'.
            pace = serving.pace.batches * sum(map(slower.__getitem__, members)) / len(members)
            if each_slows:
                running[:] = [end for end in running if end > closing]
                pace *= 1.0 + each_slows * len(running)
            clock = closing + (model.fixed + time_of(members)) * pace + sum(map(stopped.__getitem__, members))
            for member in members:
                closed[member] = closing
                ended[member] = clock = clock + finishing[member]
            if each_slows:
                running.append(clock)
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

    def _new_shape_ns(self, serving: Serving) -> float:
        """What the first batch of a new shape takes longer; 0 if warm-up ran all shapes."""
        if serving.in_steps or serving.warm_shapes >= self._work.shapes:
            return 0.0
        return (self._model if serving.cost is None else serving.cost).new_shape_ns

    def _timer(self, inputs: Floats, serving: Serving) -> Callable[[Sequence[int]], float]:
        """The time of a service's batches in turn, including what new shapes take longer."""
        time_of, longer = self._model.timer(inputs, serving.cost), self._new_shape_ns(serving)
        if not longer:
            return time_of
        rows, seen = inputs.tolist(), set[tuple[int, float]]()

        def in_turn(members: Sequence[int]) -> float:
            shape = len(members), self._model.held(rows, members)[1]
            new = shape not in seen
            seen.add(shape)
            return time_of(members) + longer * new

        return in_turn


def _each_slows(serving: Serving) -> float:
    """By which share of its time a batch takes longer for each other worker that computes."""
    together = 1.0 if serving.cost is None else serving.cost.together
    return (together - 1.0) / (serving.workers - 1) if serving.workers > 1 and not serving.in_steps else 0.0


def _running_beside(begin: Ints, end: Ints) -> Ints:
    """``(m,)`` by batch, how many others were running when it began; of two that began at once, one was alone."""
    order = np.argsort(begin, kind="stable")
    found = np.empty(len(begin), dtype=np.int64)
    found[order] = np.arange(len(begin)) - np.searchsorted(np.sort(end), begin[order], side="right")
    return found


def _over(measured: float, predicted: float) -> float:
    """Their ratio; NaN unless both are positive."""
    return measured / predicted if predicted > 0 and measured > 0 else math.nan


def _stretch(time_of: Callable[[Sequence[int]], float], most: int, requests: int) -> list[float]:
    """How much longer a step takes, by the number of requests that share it."""
    some = np.unique(np.linspace(0, requests - 1, min(requests, _LIKE))).astype(int).tolist()
    alone = np.array([time_of([row]) for row in some])
    shared = [np.array([time_of([row] * size) for row in some]) / alone for size in range(1, most + 1)]
    return list(accumulate([1.0, *(float(np.median(each)) for each in shared)], max))
