"""Explanations of single requests: they add up, and name what held the worker."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.profilers.diagnose import diagnose
from latfix.profilers.drilldown.explain import tell
from latfix.profilers.drilldown.selection import check_ids, check_slowest, choose_ids, choose_slowest, nearest
from latfix.profilers.drilldown.wait_chain import MOST_LISTED
from latfix.reports.request_rows import header_facts, wait_words
from latfix.results.request_explanation import Holder, Others, Story, Wait
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE
from latfix.stages import STAGES, Status
from latfix.traffic.schedule import Traffic
from tests.profilers.evidence.outside.test_inferred_batches import served_in_batches
from tests.profilers.evidence.outside.test_outside_view import arrivals, recorded, served, services
from tests.records import build_record

MS = 1_000_000
WORKER, PREPARE, OTHER = 700, 800, 900
COLLATE, FINISH = 50_000, 100_000


@dataclass(kw_only=True)
class Line:
    """A service on simulated time: one prepare thread, then workers without a batch window; milliseconds.

    :param gc: a collection in the worker while it computes this request.
    :param fails: batches of these requests fail as a whole and run one by one.
    """

    arrivals: Sequence[float]
    compute: float = 10.0
    prepare: Mapping[int, float] = field(default_factory=dict)
    gc: Mapping[int, float] = field(default_factory=dict)
    workers: int = 1
    max_batch: int = 1
    warmup: int = 0
    ids: Sequence[str] | None = None
    features: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[int, Status] = field(default_factory=dict)
    rank: Mapping[int, int] = field(default_factory=dict)
    retried: Sequence[int] = ()
    rows: Any = None
    batches: list[Any] = field(default_factory=list)
    events: list[tuple[int, int, str, int, int, Any]] = field(default_factory=list)

    def record(self) -> RunRecord:
        n = len(self.arrivals)
        self.rows = np.zeros(n, REQUEST_DTYPE)
        rows = self.rows
        rows["index"] = np.concatenate([-np.arange(self.warmup, 0, -1), np.arange(n - self.warmup)])
        rows["warmup"] = rows["index"] < 0
        rows["arrival_ns"] = [round(ms * MS) for ms in self.arrivals]
        rows["batch_id"], rows["dispatch_ns"] = -1, 1_000
        self._prepare_all()
        self._serve_all()
        rows["latency_ns"] = sum(rows[f"{stage}_ns"] for stage in STAGES)
        scheduled = n - self.warmup
        self.events.sort(key=lambda event: event[0])
        events: dict[str, Any] = {
            name: np.array([event[k] for event in self.events], np.int64)
            for name, k in (("t_ns", 0), ("duration_ns", 1), ("thread", 3), ("request", 4))
        }
        events["batch_id"] = np.full(len(self.events), -1, np.int64)
        for name, k in (("kind", 2), ("detail", 5)):
            events[name] = np.empty(len(self.events), object)
            events[name][:] = [event[k] for event in self.events]
        assert set(events) == set(EVENT_FIELDS)
        batches = np.array(self.batches, BATCH_DTYPE) if self.batches else np.zeros(0, BATCH_DTYPE)
        columns = [
            {name: np.ascontiguousarray(table[name]) for name in table.dtype.names or ()} for table in (rows, batches)
        ]
        priority = [self.rank.get(k, 1) for k in range(self.warmup, n)]
        return build_record(
            state="complete",
            scheduled=scheduled,
            torch_threads=1,
            settings={"max_batch_size": self.max_batch, "workers": self.workers, "prepare_threads": 1},
            threads={"worker": [WORKER + w for w in range(self.workers)], "prepare": [PREPARE]},
            requests=columns[0],
            batches=columns[1],
            events=events,
            traffic=Traffic.plain(
                np.maximum(rows["arrival_ns"][self.warmup :], 0),
                ids=list(self.ids or [f"r{k}" for k in range(scheduled)]),
                priority=np.array(priority, np.int8),
                features=self.features,
            ),
            errors={k: "it broke" for k, status in self.status.items() if status in (Status.ERROR, Status.SHED)},
        )

    def _prepare_all(self) -> None:
        rows, free = self.rows, -(10**12)
        for k in range(len(rows)):
            handed = int(rows["arrival_ns"][k]) + 1_000
            begin = max(handed, free)
            work = round(self.prepare.get(k, 0.5) * MS)
            free = begin + work
            rows["prepare_thread"][k] = 0
            rows["prepare_wait_ns"][k] = begin - handed
            rows["prepare_ns"][k] = free - handed
            rows["prepare_cpu_ns"][k] = work
            rows["input_elements"][k] = rows["input_length"][k] = 4

    def _serve_all(self) -> None:
        rows = self.rows
        ready = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"]
        order = sorted((k for k in range(len(rows)) if k not in self.status), key=lambda k: (int(ready[k]), k))
        free = [(-(10**9), w) for w in range(self.workers)]
        waiting: list[tuple[int, int, int]] = []
        while order or waiting:
            idle, worker = heapq.heappop(free)
            opened = idle if waiting else max(idle, int(ready[order[0]]))
            while order and ready[order[0]] <= opened:
                k = order.pop(0)
                heapq.heappush(waiting, (self.rank.get(k, 1), int(ready[k]), k))
            members = [heapq.heappop(waiting)[2] for _ in range(min(self.max_batch, len(waiting)))]
            end = self._run(worker, idle, opened, members, ready)
            heapq.heappush(free, (end, worker))
        for k, status in self.status.items():
            rows["status"][k] = status
            if status is Status.TIMEOUT:
                rows["queue_ns"][k] = 100 * MS

    def _run(self, worker: int, idle: int, opened: int, members: list[int], ready: Any) -> int:
        taken = {k: max(opened, int(ready[k])) for k in members}
        if not set(members) & set(self.retried):
            return self._batch(worker, idle, opened, members, ready, taken, retried=False)
        now = opened + round(self.compute * MS)
        self._row(worker, idle, opened, len(members), (now, now, now), now, retried=True)
        for k in members:
            now = self._batch(worker, now, now, [k], ready, taken, retried=True)
        return now

    def _batch(
        self,
        worker: int,
        idle: int,
        opened: int,
        members: list[int],
        ready: Any,
        taken: dict[int, int],
        *,
        retried: bool,
    ) -> int:
        rows, begin = self.rows, opened + COLLATE
        pause = round(sum(self.gc.get(k, 0.0) for k in members) * MS)
        done = begin + round(self.compute * MS) + pause
        if pause:
            detail = {"generation": 2, "collected": 5}
            self.events.append((begin + MS, pause, "gc", WORKER + worker, -1, detail))
        end = done
        number = len(self.batches)
        for k in members:
            rows["queue_ns"][k] = taken[k] - ready[k]
            rows["batch_ns"][k] = begin - taken[k]
            rows["compute_ns"][k] = done - begin
            rows["finish_wait_ns"][k] = end - done
            rows["finish_ns"][k] = end + FINISH - done
            rows["finish_cpu_ns"][k] = FINISH
            rows["batch_id"][k] = number
            end += FINISH
        self._row(worker, idle, opened, len(members), (begin, begin, done), end, retried=retried)
        return end

    def _row(
        self, worker: int, idle: int, opened: int, size: int, stamps: tuple[int, int, int], end: int, *, retried: bool
    ) -> None:
        batch = np.zeros((), BATCH_DTYPE)
        batch["batch_id"], batch["worker"], batch["size"] = len(self.batches), worker, size
        batch["free_ns"], batch["open_ns"], batch["close_ns"] = idle, opened, opened
        batch["collated_ns"], batch["h2d_end_ns"], batch["compute_end_ns"] = stamps
        batch["d2h_end_ns"], batch["finish_end_ns"] = stamps[2], end
        batch["collate_cpu_ns"], batch["compute_cpu_ns"] = stamps[0] - opened, stamps[2] - stamps[1]
        batch["real_elements"] = batch["padded_elements"] = 4 * size
        batch["retried"] = retried
        self.batches.append(batch)


def explained(record: RunRecord, *names: str) -> tuple[Story, ...]:
    ledger = diagnose(record, bootstrap=2).ledger
    chosen = choose_ids(record, names) if names else choose_slowest(record, 1000)
    return tell(record, ledger, chosen)


def queue_of(story: Story) -> Wait:
    (wait,) = [wait for wait in story.waits if wait.resource == "queue"]
    return wait


def by_label(wait: Wait) -> dict[str, Holder]:
    return {holder.label: holder for holder in wait.holders}


def paced(n: int, every: float = 20.0) -> list[float]:
    return [k * every for k in range(n)]


def test_holders_and_their_causes() -> None:
    record = Line(arrivals=paced(60), gc={30: 200.0}).record()
    (story,) = explained(record, "r32")
    wait = queue_of(story)
    culprit = by_label(wait)["30"]
    assert [holder.label for holder in wait.holders] == ["30", "31"]
    assert culprit.excess_ns == pytest.approx(200 * MS, rel=0.02)
    assert dict(culprit.causes)["python.gc"] == 200 * MS
    assert culprit.causes[0][0] == "python.gc"
    assert culprit.at_ns == int(record.batches["open_ns"][30] - record.requests["arrival_ns"][32])
    ordinary = by_label(wait)["31"]
    assert ordinary.within_ns == ordinary.held_ns
    assert abs(ordinary.excess_ns) < MS
    assert wait.idle_ns == 0
    assert wait.at_ns + wait.duration_ns == next(stage.at_ns for stage in story.stages if stage.stage == "batch")
    assert wait.busy_since_ns == culprit.at_ns
    assert "garbage collector" in story.sentence and "batch 30 (1 request)" in story.sentence
    assert {entry.cause: entry.propagated_ns for entry in story.entries}["python.gc"] > 100 * MS


def test_the_chain_goes_back_to_when_the_worker_was_last_idle() -> None:
    record = Line(arrivals=paced(60), gc={30: 200.0}).record()
    (late,) = explained(record, "r44")
    wait = queue_of(late)
    culprit = by_label(wait)["30"]
    assert culprit.within_ns == 0
    assert culprit.at_ns + culprit.held_ns < wait.at_ns
    assert wait.busy_since_ns == culprit.at_ns
    (before,) = explained(record, "r30")
    assert not before.waits


@settings(max_examples=12)
@given(data=st.data())
def test_every_story_adds_up(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    gaps = data.draw(st.lists(st.floats(0.0, 30.0), min_size=n, max_size=n))
    record = Line(
        arrivals=np.cumsum(gaps).tolist(),
        gc=data.draw(st.dictionaries(st.integers(0, n - 1), st.floats(1.0, 80.0), max_size=3)),
        prepare=data.draw(st.dictionaries(st.integers(0, n - 1), st.floats(0.1, 60.0), max_size=3)),
        workers=data.draw(st.integers(1, 3)),
        max_batch=data.draw(st.integers(1, 4)),
        retried=data.draw(st.lists(st.integers(0, n - 1), max_size=2)),
        rank=data.draw(st.dictionaries(st.integers(0, n - 1), st.integers(0, 2), max_size=5)),
    ).record()
    stories = explained(record)
    assert len(stories) == n
    for story in stories:
        assert story.difference_ns == 0
        assert sum(stage.duration_ns for stage in story.stages) == story.latency_ns
        reached = 0
        for stage in story.stages:
            assert stage.at_ns == reached
            reached += stage.duration_ns
            assert not stage.parts or sum(ns for _, ns in stage.parts) == stage.duration_ns
            assert all(ns > 0 for _, ns in stage.parts)
        for wait in story.waits:
            assert len(wait.holders) <= MOST_LISTED
            starts = [holder.at_ns for holder in wait.holders]
            assert starts == sorted(starts)
            parts: list[Holder | Others] = [*wait.holders, *([wait.others] if wait.others else [])]
            for part in parts:
                assert sum(ns for _, ns in part.causes) == part.excess_ns
            within = sum(part.within_ns for part in parts)
            if len(record.meta.threads["worker"]) == 1 or wait.resource == "prepare":
                assert within + wait.idle_ns == wait.duration_ns
            assert within >= wait.duration_ns - wait.idle_ns
            assert wait.idle_ns <= 0 or wait.resource == "prepare", "a request never waits for an idle worker"


def test_many_holders_are_summed_up_without_loss() -> None:
    n = 80
    record = Line(arrivals=paced(n, 1.0), gc={5: 300.0}).record()
    (story,) = explained(record, "r70")
    wait = queue_of(story)
    assert len(wait.holders) == MOST_LISTED
    assert wait.others is not None
    assert wait.others.count == 70 - MOST_LISTED
    assert "5" in by_label(wait)
    assert sum(holder.within_ns for holder in wait.holders) + wait.others.within_ns == wait.duration_ns


def test_a_wait_for_the_prepare_thread_names_the_request_that_had_it() -> None:
    (story,) = explained(Line(arrivals=paced(60), prepare={20: 90.0}).record(), "r22")
    (wait,) = [wait for wait in story.waits if wait.resource == "prepare"]
    slow = by_label(wait)["r20"]
    assert slow.excess_ns == pytest.approx(89.5 * MS, rel=0.01)
    assert list(by_label(wait)) == ["r20", "r21"]
    assert wait.idle_ns == 0
    assert "the prepare of r20" in story.sentence


def test_a_slow_prepare_is_not_attributed_to_the_batch() -> None:
    line = Line(arrivals=paced(60), prepare={30: 90.0})
    line.events.append((30 * 20 * MS + MS, 80 * MS, "gc", PREPARE, -1, {"generation": 2, "collected": 0}))
    (victim, culprit) = explained(line.record(), "r31", "r30")
    assert {entry.cause: entry.own_ns for entry in culprit.entries}["python.gc"] == 80 * MS
    pool, queue = victim.waits
    assert dict(by_label(pool)["r30"].causes)["python.gc"] == 80 * MS
    batch = by_label(queue)["30"]
    assert abs(batch.excess_ns) < MS
    assert "python.gc" not in dict(batch.causes)


def test_holders_and_the_ledger_name_the_same_causes() -> None:
    # GIVEN a batch that takes 230 ms longer because threads of the operators' pool had no core
    line = Line(arrivals=paced(60), gc={30: 230.0})
    record = line.record()
    record.batches["pool_runq_ns"][30] = 230 * MS
    none = {name: column[:0] for name, column in record.events.items()}
    record = replace(record, events=none, meta=record.meta.updated(torch_threads=2))
    # WHEN
    (story,) = explained(record, "r32")
    # THEN the batch's table names what the ledger names
    held = dict(by_label(queue_of(story))["30"].causes)
    through = {entry.cause: entry.propagated_ns for entry in story.entries}
    assert held["host.contention"] == pytest.approx(230 * MS, rel=0.02)
    assert abs(held.get("unexplained", 0)) < MS
    assert max(through, key=lambda cause: through[cause]) == "host.contention"


def test_every_busy_worker_is_listed() -> None:
    record = Line(arrivals=paced(60, 8.0), workers=2, gc={20: 150.0, 21: 170.0}).record()
    (story,) = explained(record, "r24")
    wait = queue_of(story)
    assert {holder.thread for holder in wait.holders} == {0, 1}
    assert {"20", "21"} <= set(by_label(wait))
    assert wait.idle_ns == 0


def test_members_of_a_failed_batch() -> None:
    record = Line(arrivals=[*paced(50), 1001.0, 1001.1, 1001.2, 1001.3], max_batch=4, retried=[52], gc={50: 40.0})
    stories = explained(record.record(), "r53", "r52")
    for story in stories:
        assert story.batch is not None and story.batch.retried
        facts = [fact for holder in queue_of(story).holders for fact in holder.facts]
        assert "failed as a whole, with this request in it" in facts
        (batch,) = [stage for stage in story.stages if stage.stage == "batch"]
        assert dict(batch.parts)["its batch as a whole, which failed"] >= 10 * MS
        assert story.difference_ns == 0


def test_requests_that_overtook() -> None:
    arrivals = [*paced(40), 801.0, 802.0, 803.0, 804.0]
    record = Line(arrivals=arrivals, gc={40: 50.0}, rank={41: 2, 42: 0, 43: 0}).record()
    (story,) = explained(record, "r41")
    holders = by_label(queue_of(story))
    assert [holders[str(int(record.requests["batch_id"][k]))].overtook for k in (40, 42, 43)] == [0, 1, 1]
    assert story.priority == "low"


ENDINGS = {Status.ERROR: "It failed", Status.TIMEOUT: "Its caller gave up", Status.SHED: "It was turned away"}


@pytest.mark.parametrize("status", ENDINGS)
def test_requests_without_a_batch_have_a_timeline_and_no_ledger(status: Status) -> None:
    line = Line(arrivals=paced(50), gc={20: 180.0}, status={22: status})
    line.events.append((22 * 20 * MS + 501_000, 0, "error", PREPARE, 22, {"message": "no such key", "stage": ""}))
    record = line.record()
    if status is Status.SHED:
        for name in ("prepare_ns", "prepare_cpu_ns", "prepare_wait_ns"):
            record.requests[name][22] = 0
        record.requests["prepare_thread"][22] = -1
        record.requests["latency_ns"][22] = 1_000
    (story,) = explained(record, "r22")
    assert story.reference_ns is None and story.difference_ns is None and not story.entries
    assert story.faster is None
    assert story.sentence.startswith(ENDINGS[status])
    assert sum(stage.duration_ns for stage in story.stages) == story.latency_ns
    assert story.batch is None
    if status is Status.SHED:
        assert story.sentence.endswith("after its arrival: it broke.")
    if status is Status.ERROR:
        assert "it broke" in story.sentence
        ended_in = story.stages[-1].happenings
        assert [event.what for event in ended_in if event.kind == "error"] == ["no such key"]
    if status is Status.TIMEOUT:
        assert "20" in by_label(queue_of(story))
        assert "in queue after 10" in story.sentence and "batch 20 (1 request)" in story.sentence


def test_warm_up_is_explained_only_without_a_measured_row() -> None:
    record = Line(arrivals=[-60.0, -30.0, *paced(30)], warmup=2, gc={0: 500.0}).record()
    stories = explained(record)
    assert len(stories) == 30
    assert not any(story.warmup for story in stories)
    (measured,) = explained(record, "r0")
    assert not measured.warmup and measured.index == 0
    early = replace(record, requests={name: column[:2] for name, column in record.requests.items()}, partial=True)
    first, other = explained(early, "r0", "r5")
    assert first.warmup and first.index == -1 and first.reference_ns is None
    assert "warm-up" in first.sentence
    assert other.row is None


def test_an_ordinary_request_and_its_rank() -> None:
    record = Line(arrivals=paced(40, 100.0), gc={7: 30.0, 9: 60.0}).record()
    slowest, second, *_ = explained(record)
    assert [(story.id, story.faster) for story in (slowest, second)] == [("r9", 39), ("r7", 38)]
    (story,) = explained(record, "r3")
    assert story.sentence.startswith("It was not slow") and story.ok_requests == 40


def test_what_was_never_recorded() -> None:
    record = Line(arrivals=paced(40), gc={20: 200.0}).record()
    cut = replace(record, requests={name: column[:25] for name, column in record.requests.items()}, partial=True)
    (story,) = explained(cut, "r27")
    assert (story.row, story.status, story.arrival_ns) == (None, "not recorded", 27 * 20 * MS)
    assert not story.stages and not story.waits and "when the run stopped" in story.sentence
    killed = replace(record, batches={name: column[:20] for name, column in record.batches.items()}, partial=True)
    (story,) = explained(killed, "r22")
    wait = queue_of(story)
    assert wait.idle_ns == wait.duration_ns and not wait.holders and story.reference_ns is None
    empty = replace(record, requests={name: column[:0] for name, column in record.requests.items()})
    assert choose_slowest(empty, 10) == () and explained(empty, "r0")[0].row is None


def test_what_the_thread_did_and_the_events_inside() -> None:
    line = Line(arrivals=paced(40), gc={20: 120.0})
    start = 20 * 20 * MS
    line.events += [
        (start + 100_000, 200_000, "span", PREPARE, 20, {"name": "store", "stage": "prepare"}),
        (start + 310_000, 50_000, "span", PREPARE, 20, {"name": "store", "stage": "prepare"}),
        (start + 100_000, 200_000, "span", PREPARE, 19, {"name": "not mine", "stage": "prepare"}),
        (start + 150_000, 2_000_000, "gc", OTHER, -1, {"generation": 1, "collected": 0}),
        (start + 60 * MS, 1_500_000, "spike", OTHER, -1, {"probe": "host"}),
        (start + 61 * MS, 1_000, "compile", WORKER, -1, "damaged"),
    ]
    record = line.record()
    record.requests["prepare_minflt"][20] = 17
    (story,) = explained(record, "r20")
    stages = {stage.stage: stage for stage in story.stages}
    prepare = {(event.kind, event.what): event for event in stages["prepare"].happenings}
    store = prepare["span", "store"]
    assert (store.count, store.duration_ns, store.own) == (2, 250_000, True)
    assert ("span", "not mine") not in prepare
    elsewhere = prepare["gc", "generation 1"]
    handed = start + 1_000
    assert elsewhere.duration_ns == handed + 500_000 - (start + 150_000), "only what lies within the stage"
    assert not elsewhere.own
    compute = {(event.kind, event.what): event for event in stages["compute"].happenings}
    own = compute["gc", "generation 2"]
    assert own.own and own.where == "worker 0" and own.duration_ns == 120 * MS
    assert compute["spike", "host"].count == 1
    assert ("compile", "") in compute
    account = stages["prepare"].account
    assert account is not None
    assert (account.thread, account.minflt, account.cpu_ns) == ("prepare 0", 17, 500_000)
    assert stages["queue"].account is None if "queue" in stages else True


def test_two_requests_with_one_id_are_both_explained() -> None:
    ids = [f"r{k}" for k in range(30)]
    ids[20] = "r3"
    stories = explained(Line(arrivals=paced(30), ids=ids).record(), "r3", "r4")
    assert [(story.index, story.matches) for story in stories] == [(3, 2), (20, 2), (4, 1)]


def test_an_unknown_id_names_the_nearest() -> None:
    ids = [f"r{k:05d}" for k in range(120)]
    with pytest.raises(InputError) as caught:
        check_ids(["r00003", "r0071"], ids)
    assert "'r0071'" in caught.value.message and "'r00071'" in caught.value.message
    assert nearest("71", ids)[0] == "r00071"
    assert nearest("R00007", ids)[0] == "r00007"
    check_ids(["r00003"], ids)
    many = [f"request-{k:06d}" for k in range(200_000)]
    assert nearest("request-15321", many)[0].startswith("request-15321")
    assert "request-153214" in nearest("153214", many)


@pytest.mark.parametrize("name", ["", "\x1b[31m\n", "x" * 100_000, "\ud800", "[red]"])
def test_no_id_breaks_the_message(name: str) -> None:
    with pytest.raises(InputError) as caught:
        check_ids([name], [f"r{k}" for k in range(5)])
    message = caught.value.message
    assert len(message) < 400 and message.isprintable() and message.replace("…", "").isascii()


def test_invalid_counts_are_refused() -> None:
    for count in (0, -1, 1001, 10**9):
        with pytest.raises(InputError, match="--slowest"):
            check_slowest(count)
    for known in (None, 1, 1000):
        check_slowest(known)


def test_the_document_is_plain_json() -> None:
    n = 30
    features = {
        "score": np.where(np.arange(n) == 3, np.inf, 1.5),
        "name": np.array(["\ud800\x00"] * n, dtype=object),
        "tokens": np.arange(n),
    }
    record = Line(arrivals=paced(n), gc={2: 90.0}, features=features).record()
    (story,) = explained(record, "r3")
    document = json.loads(json.dumps(story.to_json(), allow_nan=False))
    assert document["features"] == {"score": None, "name": "\ud800\x00", "tokens": 3}
    assert document["difference_ns"] == 0
    total = sum(entry["own_ns"] + entry["propagated_ns"] for entry in document["entries"])
    assert document["reference_ns"] + total == document["latency_ns"]
    assert {entry["class"] for entry in document["entries"]} <= {"measured", "counted", "modelled", "remainder"}
    (holder,) = document["waits"][0]["holders"]
    assert holder["excess_ns"] == sum(cause["ns"] for cause in holder["causes"])


def test_what_a_request_waited_behind_at_a_server_seen_from_outside() -> None:
    at = arrivals(80.0)
    end = served(at, services(), 1)
    record = recorded(at, end)
    stories = explained(record)
    for each in stories[:200]:
        first = each.index
        while end[first - 1] > at[first]:
            first -= 1
        for wait in each.waits:  # back to when the server was last idle, however briefly
            since = int(record.requests["arrival_ns"][each.index]) + wait.busy_since_ns
            assert abs(since - int(at[first])) < MS // 10
    story = stories[0]
    (wait,) = story.waits
    assert wait.resource == "server" and story.batch is None
    ahead = int(story.index) - np.arange(1, 4)
    assert {f"r{index}" for index in ahead} <= set(by_label(wait))
    assert "requests ran ahead of it" in story.sentence and "batch" not in story.sentence
    assert wait_words(wait).startswith("It waited") and "for a server" in wait_words(wait)


def test_the_batches_of_a_service_seen_from_outside_are_inferred() -> None:
    story = explained(served_in_batches("arrival", load=0.85, window_ms=0.0))[0]
    assert story.batch is not None and story.batch.inferred and story.id in story.batch.members
    assert "inferred from answers" in dict(header_facts(story))["batch"]
    holders = queue_of(story).holders
    assert all(holder.size <= 8 and holder.held_ns > 10 * MS for holder in holders)
    assert holders[-1].label == str(story.batch.batch_id - 1)
