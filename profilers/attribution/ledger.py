"""The ledger: causes claim in order, each nanosecond counts once, delays pass through the queue, sums are exact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.attribution.lock_attribution import HOLDERS, HOLDS_BLOCKED, LockHolders
from latfix.profilers.attribution.tail import Doubt
from latfix.profilers.attribution.wait_attribution import MINUTE_NS, Blame, Line, blame_waits
from latfix.profilers.causes import CAUSES
from latfix.profilers.causes.cause import Claim, Granted, Left
from latfix.profilers.causes.host.contention import late_wakings
from latfix.profilers.causes.python.gil_waits import one_wakeup_ns
from latfix.profilers.evidence.outside.outside_view import presence
from latfix.profilers.evidence.run_baselines import ordinary_mean, quiet_median
from latfix.profilers.evidence.units import BATCH_UNITS, REQUEST_UNITS, Evidence
from latfix.queueing.queue_simulator import Policy
from latfix.queueing.recorded_batches import Recorded
from latfix.results.diagnosis import Ledger

#: A thread that takes longer to wake up in typical requests waited for something.
_LONGEST_WAKING_NS = 1_000_000
_LOCK = [cause.id for cause in CAUSES].index("python.gil")
#: Causes that hold the scatter: work that takes more or less time than its inputs need, for no visible reason.
_SCATTER = [k for k, cause in enumerate(CAUSES) if cause.id in ("host.slowdown", "unexplained")]
#: Likewise of a service behind an address, whose waits for something outside are ordinary up to their median.
_SCATTER_OUTSIDE = [k for k, cause in enumerate(CAUSES) if k in _SCATTER or cause.id == "external.dependency"]
#: The published stage of each part.
STAGE_OF: Mapping[str, str] = {"lag": "batch", "collate": "batch", "window": "batch", "finish_wait": "finish"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerContext:
    """A ledger and the data it was made from.

    :param stages: reference nanoseconds by published stage.
    :param closure_ns: ``(n,)`` by ledger row, the wait that the queue's replay does not reproduce.
    :param line: the queues, with every request of the record; its columns are the ledger's causes.
    :param ok: mask of the line's requests that are ledger rows.
    :param by_others: ``(K, n)`` the part of ``propagated`` that came through the finish of other batch members or
        through the interpreter lock.
    :param lock_closure_ns: ``(n,)`` waits for the interpreter lock without a known holder.
    :param doubt: what makes the figures uncertain.
    """

    ledger: Ledger
    stages: Mapping[str, int]
    closure_ns: Ints
    lock_closure_ns: Ints
    line: Line
    ok: Bools
    by_others: Ints
    doubt: Doubt


class _Accounts:
    """Ledger entries during booking; row ``k`` belongs to ``CAUSES[k]``."""

    def __init__(self, evidence: Evidence) -> None:
        n, m = len(evidence.ok), len(evidence.batches["size"])
        self.evidence = evidence
        #: Reference nanoseconds by stage: the sum of the quiet medians of its parts.
        self.stages: dict[str, int] = defaultdict(int)
        #: Parts of the reference: a cause's row and the per-request values whose quiet median it is.
        self.usual: list[tuple[int, Ints]] = []
        self.spread = np.zeros((len(CAUSES), n))
        self.own: Ints = np.zeros((len(CAUSES), n), np.int64)
        self.prepare: Ints = np.zeros((len(CAUSES), n), np.int64)
        self.finish: Ints = np.zeros((len(CAUSES), n), np.int64)
        self.batch: Ints = np.zeros((len(CAUSES), m), np.int64)
        #: The part of ``own`` that lock holders caused, and waits for the lock without a known holder.
        self.locked: Ints = np.zeros((len(CAUSES), n), np.int64)
        self.lock_closure: Ints = np.zeros(n, np.int64)

    def refer(self, stage: str, ns: int) -> int:
        """Add ``ns`` to a stage's reference, and return it."""
        self.stages[stage] += ns
        return ns

    def book_unit(self, k: int, name: str, amount: Ints, *, disturbance: bool = False) -> None:
        """Book a cause's time in a unit: all of it for a disturbance, otherwise the excess over its quiet median."""
        stage = STAGE_OF.get(name, name)
        if name in REQUEST_UNITS:
            usual = 0 if disturbance else self._usual(k, name, amount)
            excess = amount - self.refer(stage, usual)
            self.own[k] += excess
            self._carry(k, name, excess)
        else:
            at_member = self.evidence.of_batch(amount)
            usual = self.refer(stage, 0 if disturbance else self._usual(k, name, at_member))
            self.own[k] += np.where(self.evidence.batch_of >= 0, at_member - usual, 0)
            if name != "d2h" or not self.evidence.setup.overlapped:
                self.batch[k] += amount - usual

    def book_locked(self, name: str, owned: Ints, unknown: Ints) -> None:
        """Book a unit's waits for the interpreter lock to the causes of its holders, in full."""
        for k in np.flatnonzero(owned.any(axis=1)).tolist():
            self.book_unit(k, name, owned[k], disturbance=True)
            self.locked[k] += self.at_requests(name, owned[k])
        self.lock_closure += self.at_requests(name, unknown)

    def at_requests(self, name: str, amount: Ints) -> Ints:
        """A unit's amounts by request."""
        return amount if name in REQUEST_UNITS else self.evidence.of_batch(amount)

    def book_own(self, k: int, claim: Claim) -> None:
        """Book modelled work and waits on the request's own path."""
        for name, amount in claim.own.items():
            usual = claim.usual[name] if name in claim.usual else self._usual(k, name, amount)
            excess = amount - self.refer(STAGE_OF.get(name, name), usual)
            self.own[k] += excess
            self._carry(k, name, excess)
        if claim.behind is not None:
            self.batch[k] += claim.behind
        if claim.doubt is not None:
            self.spread[k] += claim.doubt

    def _usual(self, k: int, name: str, amount: Ints) -> int:
        if amount.any():
            self.usual.append((k, amount))
        quiet = self.evidence.quiet
        return self.evidence.norms.of(f"reference.{CAUSES[k].id}.{name}", lambda: quiet_median(amount, quiet))

    def _carry(self, k: int, name: str, excess: Ints) -> None:
        if name == "prepare":
            self.prepare[k] += excess
        elif name == "finish":
            self.finish[k] += excess


def make_books(evidence: Evidence) -> LedgerContext:
    """Attribute every measured ``ok`` request's excess over the reference."""
    accounts = _Accounts(evidence)
    _book_claims(accounts)
    line = _line(accounts)
    return _close(accounts, line, blame_waits(line))


def service_line(evidence: Evidence) -> Line:
    """The two queues of :func:`make_books`, with each cause's addition to service time."""
    accounts = _Accounts(evidence)
    _book_claims(accounts)
    return _line(accounts)


def _book_claims(accounts: _Accounts) -> None:
    evidence = accounts.evidence
    left = Left(evidence)
    taken = {name: np.zeros(len(unit.cpu), np.int64) for name, unit in evidence.units.items()}
    modelled = {"prepare": evidence.expected.prepare, "finish": evidence.expected.finish}
    modelled["compute"] = evidence.expected.padded
    claims, granted = [], []
    for cause in CAUSES:
        claims.append((cause.outside if evidence.setup.outside else cause.claim)(evidence, left))
        granted.append(left.take(claims[-1]))
    moved = _through_the_lock(accounts, granted, claims)
    for k, claim in enumerate(claims):
        for name, got in granted[k].items():
            taken[name] += got.total
            amount = got.total - moved[name][0].sum(axis=0) if k == _LOCK and name in moved else got.total
            accounts.book_unit(k, name, amount, disturbance=claim.disturbance)
        accounts.book_own(k, claim)
    for name, divided in moved.items():
        accounts.book_locked(name, *divided)
    last = len(CAUSES) - 1
    for name in (*REQUEST_UNITS, *BATCH_UNITS):
        unit = evidence.units[name]
        accounts.book_unit(last, name, unit.wall - taken[name] - modelled.get(name, 0))


def _through_the_lock(
    accounts: _Accounts, granted: list[dict[str, Granted]], claims: list[Claim]
) -> dict[str, tuple[Ints, Ints]]:
    """By unit, its waits for the interpreter lock divided as by :meth:`LockHolders.blame`."""
    evidence = accounts.evidence
    waits = {name: got.total for name, got in granted[_LOCK].items() if got.total.any()}
    if not waits:
        return {}

    def beyond(k: int, name: str, amount: Ints) -> Ints:
        if claims[k].disturbance:
            return amount
        at_member = accounts.at_requests(name, amount)
        learn = partial(quiet_median, at_member, evidence.quiet)
        return np.maximum(amount - evidence.norms.of(f"lock.usual.{CAUSES[k].id}.{name}", learn), 0)

    held, paused = {}, {}
    for name in HOLDERS:
        rows = len(evidence.units[name].start)
        held[name], paused[name] = np.zeros((len(CAUSES), rows), np.int64), np.zeros(rows, np.int64)
        for k, cause in enumerate(CAUSES):
            got = granted[k].get(name)
            if got is None:
                continue
            on = got.total if cause.id in HOLDS_BLOCKED else got.total - got.blocked
            if cause.id == "python.gc":  # waits for a collection are already attributed by its interval
                paused[name] = on
            elif k != _LOCK and not claims[k].expected:
                held[name][k] = beyond(k, name, on)
    holders = LockHolders(evidence, held, paused)
    return {name: holders.blame(name, beyond(_LOCK, name, amount)) for name, amount in waits.items()}


def _line(accounts: _Accounts) -> Line:
    """The two queues, with the reference service time and each cause's addition to it."""
    evidence, setup = accounts.evidence, accounts.evidence.setup
    rows = evidence.rows
    last = len(CAUSES) - 1
    prepared = np.asarray(rows["prepare_thread"] >= 0)
    work = evidence.units["prepare"].wall
    usual = accounts.stages["prepare"]
    prepare = accounts.prepare.copy()
    prepare[last] += work - usual - prepare.sum(axis=0)  # keeps the sum exact despite rounding
    usual += round(usual * _ordinary(accounts, "prepare", prepare, np.full(len(work), usual), prepared))
    service, reference = _batch_service(accounts)
    batch = accounts.batch.copy()
    if not setup.overlapped:
        for k in range(last):
            batch[k] += evidence.members.total(accounts.finish[k])
    size = np.minimum(evidence.batches["size"], len(reference) - 1)
    typical = np.rint(reference[size]).astype(np.int64)
    batch[last] += service - typical - batch.sum(axis=0)
    reference = reference * (1.0 + _ordinary(accounts, "batch", batch, typical, evidence.batches["size"] > 0))
    arrival = rows["arrival_ns"]
    span = float(np.ptp(arrival)) if len(arrival) else 0.0
    headed = np.zeros((len(CAUSES), len(evidence.ok)), np.int64)
    known = evidence.head >= 0
    headed[:, evidence.head[known]] = batch[:, known]
    return Line(
        handed=evidence.units["intake"].end.astype(np.float64),
        prepared=prepared,
        queued=np.asarray((evidence.batch_of >= 0) & (setup.servers != 0)),
        priority=evidence.priority,
        prepare=Policy(
            workers=setup.prepare_threads, max_batch=1, window=0.0, reference=np.array([0.0, max(float(usual), 0.0)])
        ),
        workers=Policy(
            workers=setup.workers,
            max_batch=setup.max_batch,
            window=float(setup.window_ns),
            reference=reference,
            by_length=setup.by_length,
            ageing=float(setup.ageing_ns),
        ),
        prepare_extra=_columns(prepare),
        batch_extra=_columns(headed),
        window_column=_index("batching.window"),
        ended=evidence.of_batch(evidence.released_ns).astype(np.float64),
        length=rows["bucket_length"],
        # A minute, or a quarter of a run that is shorter than four.
        lasting=evidence.norms.of("lasting", lambda: min(MINUTE_NS, span / 4)),
        recorded=_recorded(evidence) if setup.recorded else None,
    )


def _ordinary(accounts: _Accounts, name: str, extra: Ints, reference: Ints, served: Bools) -> float:
    """Move the mean of ordinary scatter around the median from the scatter's causes to the reference.

    :param extra: ``(K, n)`` nanoseconds beyond ``reference``, changed in place.
    :returns: the relative growth of the reference.
    """
    rows = np.flatnonzero(served)
    if not len(rows):
        return 0.0
    scatter = _SCATTER_OUTSIDE if accounts.evidence.setup.outside else _SCATTER

    def learn(k: int) -> float:
        shares = extra[scatter][:, rows] / np.maximum(reference[rows], 1)
        return ordinary_mean(shares[scatter.index(k)], shares.sum(axis=0))

    grown = 0.0
    for k in scatter:
        share = accounts.evidence.norms.of(f"ordinary.{CAUSES[k].id}.{name}", partial(learn, k))
        extra[k, rows] -= np.rint(share * reference[rows]).astype(np.int64)
        grown += share
    return grown


def _recorded(evidence: Evidence) -> Recorded:
    batches = evidence.batches
    return Recorded.of(
        evidence.batch_of,
        batches["worker"],
        batches["open_ns"],
        batches["close_ns"] - evidence.units["lag"].wall,
        presence(evidence.rows)[0],
    )


def _batch_service(accounts: _Accounts) -> tuple[Ints, Floats]:
    """How long each batch held its worker, and the reference duration by batch size."""
    evidence, stages = accounts.evidence, accounts.stages
    batches, lag = evidence.batches, evidence.units["lag"].wall
    service = evidence.released_ns - (batches["close_ns"] - lag)
    typical = evidence.expected.typical.astype(np.float64)
    # The reference of `compute` is a typical request's. Its part that is not modelled work occurs in every batch.
    norms, padded, quiet = evidence.norms, evidence.of_batch(evidence.expected.padded), evidence.quiet
    modelled = norms.of("typical_batch", lambda: quiet_median(padded, quiet))
    fixed = stages["batch"] + stages["h2d"] + stages["compute"] - modelled
    finish = 0
    if not evidence.setup.overlapped:
        fixed += stages["d2h"]
        finish = norms.of("typical_finish", lambda: quiet_median(evidence.units["finish"].wall, quiet))
    size = np.arange(len(typical))
    compute = np.minimum(typical, np.maximum(size, 1) * typical[min(1, len(typical) - 1)])
    reference = fixed + compute + size * finish - evidence.setup.outside_ns
    return np.asarray(service, dtype=np.int64), np.asarray(np.maximum(reference, 0.0))


def _columns(entries: Ints) -> Floats:
    return np.ascontiguousarray(entries.T, dtype=np.float64)


def _index(cause: str) -> int:
    return [known.id for known in CAUSES].index(cause)


def _close(accounts: _Accounts, line: Line, blame: Blame) -> LedgerContext:
    """Combine own and propagated time; the remainder of each request is ``unexplained``."""
    evidence = accounts.evidence
    rows, ok = evidence.rows, evidence.ok
    own = accounts.own
    entered = evidence.units["intake"].end
    in_line = rows["prepare_wait_ns"] - evidence.units["intake"].wall
    # A queue that only the service's own report shows is not replayed.
    waited = in_line + (0 if evidence.setup.servers == 0 else rows["queue_ns"])
    if evidence.setup.rule is not None:
        blame = _within(waited, blame)
    held = _held_to(waited, blame)
    waits = np.rint(held * blame.propagated.T).astype(np.int64)
    finished = _finished_before(accounts)
    own -= accounts.locked
    propagated = waits + finished + accounts.locked
    traffic = np.rint(held * blame.traffic).astype(np.int64)
    overtaken = np.rint(held * blame.priority).astype(np.int64)
    own[_index("traffic.burst")] += np.where(blame.overload, 0, traffic)
    own[_index("traffic.overload")] += np.where(blame.overload, traffic, 0)
    own[_index("traffic.priority")] += overtaken
    closure = waited - traffic - overtaken - waits.sum(axis=0)
    # Waking a thread takes time even in a quiet run. More than that, on contended cores, is a wait for a core.
    usual = evidence.norms.of("waking", lambda: quiet_median(closure, evidence.quiet))
    waking = min(max(usual, 0), _LONGEST_WAKING_NS)
    closure = closure - accounts.refer("prepare", waking)
    late = late_wakings(evidence, np.maximum(closure, 0))
    own[_index("host.contention")] += late
    closure = closure - late
    locked = one_wakeup_ns(evidence, entered, entered + in_line)
    locked = np.where(in_line > waking, np.minimum(np.maximum(closure, 0), locked), 0)
    own[_index("python.gil")] += locked
    closure = closure - locked
    latency, total = rows["latency_ns"][ok].astype(np.int64), sum(accounts.stages.values())
    own, propagated = own[:, ok], propagated[:, ok]
    last = len(CAUSES) - 1
    own[last] = latency - total - own[:last].sum(axis=0) - propagated.sum(axis=0)
    stages = dict(accounts.stages)
    stages["prepare"] += stages.pop("intake", 0)  # separate so far, because intake holds no prepare thread
    ledger = Ledger(
        request=rows["index"][ok].astype(np.int64),
        latency_ns=latency,
        reference_ns=total,
        causes=tuple(cause.id for cause in CAUSES),
        own_ns=own,
        propagated_ns=propagated,
        classes=tuple(cause.class_in(evidence) for cause in CAUSES),
    )
    return LedgerContext(
        ledger=ledger,
        stages=stages,
        closure_ns=closure[ok],
        lock_closure_ns=accounts.lock_closure[ok],
        line=line,
        ok=ok,
        by_others=(finished + accounts.locked)[:, ok],
        doubt=Doubt(
            quiet=evidence.quiet[ok],
            usual=tuple((k, values[ok]) for k, values in accounts.usual),
            spread=accounts.spread[:, ok],
        ),
    )


def _within(waited: Ints, blame: Blame) -> Blame:
    """A division in which no request waits longer at reference than it did, and nothing ahead made it wait less.

    Batches that are only inferred, and of which the next begins when the last one ends, are as sensitive to their
    reference as a queue at its capacity.
    """
    traffic, propagated = np.minimum(blame.traffic, waited), np.maximum(blame.propagated, 0.0)
    whole = propagated.sum(axis=1)
    factor = np.minimum(1.0, (waited - traffic) / np.where(whole > 0, whole, 1.0))
    return replace(blame, traffic=traffic, propagated=propagated * factor[:, None])


def _held_to(waited: Ints, blame: Blame) -> Floats:
    """Per request, the factor (at most 1) that limits the entries of its wait to the measured wait.

    A replay is sensitive to microseconds: a request that misses a batch in it may have made it in the run. Without a
    measured wait there is nothing to divide, and no cause must get an entry that ``unexplained`` then takes back.
    """
    replayed = blame.traffic + blame.priority + blame.propagated.sum(axis=1)
    more = (replayed > waited) & (replayed > 0)
    return np.where(more, waited / np.where(more, replayed, 1.0), 1.0)


def _finished_before(accounts: _Accounts) -> Ints:
    """``(K, n)`` delay of each request by the finish of earlier batch members, beyond the reference."""
    evidence = accounts.evidence
    order = evidence.members.order
    result = np.zeros_like(accounts.finish)
    if not len(order):
        return result
    turn = order[np.lexsort((evidence.ahead_in_batch[order], evidence.batch_of[order]))]
    first = np.repeat(evidence.members.first, evidence.members.count)
    for k in range(len(CAUSES)):
        entries = accounts.finish[k][turn]
        if entries.any():
            running = np.concatenate([[0], np.cumsum(entries)])
            result[k, turn] = running[:-1] - running[first]
    return result
