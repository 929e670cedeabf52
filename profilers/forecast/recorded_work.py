"""What a run's requests need: measured times of their own, and what disturbed each and its batch, by cause."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from latfix.arrays import Bools, Floats
from latfix.profilers.attribution.ledger import LedgerContext
from latfix.profilers.causes import CAUSES
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.forecast.batch_time import BatchTime
from latfix.queueing.length_buckets import padded_sides
from latfix.stages import Status

#: At most the first so many requests are simulated; they represent the run.
_MOST = 20_000
#: Effects of the machine differ in each replay, and are proportional to a batch's compute.
OF_THE_MACHINE = frozenset(cause.id for cause in CAUSES if cause.id.startswith("host."))
#: Causes that the simulation reproduces by itself; removing them requires other settings.
_OF_THE_POLICY = ("traffic.", "batching.", "input.")


class RecordedWork:
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

    def __init__(self, evidence: Evidence, books: LedgerContext, model: BatchTime, patience: Floats) -> None:
        rows, line = evidence.rows, books.line
        chosen = np.flatnonzero(followed(evidence))
        chosen = chosen[np.argsort(line.handed[chosen], kind="stable")][:_MOST]
        batches = evidence.batches
        held = (batches["d2h_end_ns"] - batches["close_ns"] + evidence.units["lag"].wall).astype(np.float64)
        undisturbed = model.undisturbed(evidence)
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


def followed(evidence: Evidence) -> Bools:
    """``(n,)`` True for requests that are simulated: answered, or timed out after ``prepare``, so of a known size."""
    rows = evidence.rows
    answered = (evidence.batch_of >= 0) & (rows["status"] == Status.OK)
    given_up = (rows["prepare_ns"] > 0) & (rows["status"] == Status.TIMEOUT)
    return np.asarray((rows["warmup"] == 0) & (answered | given_up), dtype=np.bool_)


def removable(causes: Collection[str]) -> frozenset[str]:
    """The causes whose time a forecast can remove; the others depend on policy and traffic."""
    return frozenset(cause for cause in causes if not cause.startswith(_OF_THE_POLICY))
