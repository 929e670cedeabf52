"""A ranking service: scores a slate of candidate items by a user's behaviour history.

A request contains a user and a slate. The service looks both up in its feature store (SQLite), joins click
statistics from an in-process feature cache, and runs a transformer over the history; each candidate then
attends to the encoded history, and a small MLP gives its click logit.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import latfix

HERE = Path(__file__).parent

ITEMS = 2048
CATEGORIES = 32
SEGMENTS = 128
EVENT_KINDS = 48
CANDIDATES = 120
DENSE = 4


class EncoderLayer(nn.Module):
    """Pre-norm transformer layer of plain linear layers, so that each can be quantized."""

    def __init__(self, width: int, attention: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * attention)
        self.attention_out = nn.Linear(attention, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, hidden)
        self.feed_out = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``x`` is (batch, length, width); ``mask`` is (batch, 1, 1, length), true at events."""
        batch, length, _ = x.shape
        mixed = self.query_key_value(self.attention_norm(x))
        query, key, value = mixed.view(batch, length, 3, self.heads, -1).unbind(2)
        attended = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
        )
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, -1))
        return x + self.feed_out(functional.relu(self.feed_in(self.feed_norm(x))))


class RankerModel(nn.Module):
    """History encoder, target attention and scoring MLP.

    Inputs: ``items`` and ``events`` (batch, length) int64, zero-padded, item ids counted from one;
    ``candidates`` and ``categories`` (batch, candidates) int64; ``dense`` (batch, candidates, 4) floating;
    ``segment`` (batch,) int64. Output: click logits, (batch, candidates) float32.
    """

    def __init__(
        self, width: int = 256, attention: int = 128, layers: int = 2, heads: int = 2, hidden: int = 1280
    ) -> None:
        super().__init__()
        self.heads = heads
        self.item_table = nn.Embedding(ITEMS + 1, 64, padding_idx=0)
        self.event_table = nn.Embedding(EVENT_KINDS, 64)
        self.category_table = nn.Embedding(CATEGORIES, 16)
        self.segment_table = nn.Embedding(SEGMENTS, 16)
        self.event_in = nn.Linear(64, width)
        self.candidate_in = nn.Linear(64 + 16 + DENSE, width)
        self.layers = nn.ModuleList(EncoderLayer(width, attention, heads, hidden) for _ in range(layers))
        self.history_norm = nn.LayerNorm(width)
        self.target_query = nn.Linear(width, width)
        self.target_key = nn.Linear(width, width)
        self.target_value = nn.Linear(width, width)
        self.score_in = nn.Linear(3 * width + 16 + DENSE, 256)
        self.score_mid = nn.Linear(256, 64)
        self.score_out = nn.Linear(64, 1)

    def forward(
        self,
        items: torch.Tensor,
        events: torch.Tensor,
        candidates: torch.Tensor,
        categories: torch.Tensor,
        dense: torch.Tensor,
        segment: torch.Tensor,
    ) -> torch.Tensor:
        mask = (items != 0)[:, None, None, :]
        history = self.event_in(self.item_table(items) + self.event_table(events))
        for layer in self.layers:
            history = layer(history, mask)
        history = self.history_norm(history)
        target = self.candidate_in(
            torch.cat((self.item_table(candidates), self.category_table(categories), dense), dim=-1)
        )
        interest = self._attend(target, history, mask)
        user = self.segment_table(segment)[:, None, :].expand(-1, candidates.shape[1], -1)
        joined = torch.cat((target, interest, target * interest, user, dense), dim=-1)
        scored = functional.relu(self.score_in(joined))
        return self.score_out(functional.relu(self.score_mid(scored))).squeeze(-1).float()

    def _attend(self, target: torch.Tensor, history: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, count, width = target.shape
        query = self.target_query(target).view(batch, count, self.heads, -1).transpose(1, 2)
        key = self.target_key(history).view(batch, history.shape[1], self.heads, -1).transpose(1, 2)
        value = self.target_value(history).view(batch, history.shape[1], self.heads, -1).transpose(1, 2)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return found.transpose(1, 2).reshape(batch, count, width)


@dataclass(slots=True)
class ItemStatistics:
    """How one segment of users reacted to one item."""

    impressions: int
    clicks: int
    rate: float


@dataclass(slots=True)
class Event:
    """One entry of a user's history: the item (from one) and the kind (action and age) of the event."""

    item: int
    kind: int


@dataclass(slots=True)
class User:
    """A user as cached after the first look-up."""

    segment: int
    history: list[Event]


class Ranker(latfix.Workload):
    """Adapter of the ranking service."""

    def load(self, device: str) -> torch.nn.Module:
        model = RankerModel()
        weights = load_file(str(HERE / "model.safetensors"))
        # The file has half precision to be small; the service computes in float32.
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        self._local = threading.local()
        self._users: dict[int, User] = {}
        self._statistics = self._read_statistics()
        return model.eval().to(device)

    def prepare(self, request: latfix.Request) -> dict[str, torch.Tensor]:
        user = self._user(int(request.payload["user"]))
        slate, rows = self._slate(int(request.payload["slate"]))
        found = [self._statistics[user.segment, item] for item in slate]
        dense = np.empty((len(slate), DENSE), dtype=np.float32)
        dense[:, 0] = [10.0 * s.rate - 1.0 for s in found]
        dense[:, 1] = np.log1p([s.impressions for s in found]) / 4.0
        dense[:, 2] = [row[1] for row in rows]
        dense[:, 3] = [row[2] for row in rows]
        return {
            "items": torch.tensor([event.item for event in user.history]),
            "events": torch.tensor([event.kind for event in user.history]),
            "candidates": torch.tensor(slate),
            "categories": torch.tensor([row[0] for row in rows]),
            "dense": torch.from_numpy(dense),
            "segment": torch.tensor(user.segment),
        }

    def finish(self, output: torch.Tensor, request: latfix.Request) -> list[float]:
        """Click probabilities in the slate's order."""
        del request
        answer: list[float] = torch.sigmoid(output.float()).tolist()
        return answer

    def evaluate(self, predict: Callable[[list[latfix.Request]], list[Any]]) -> float:
        """Area under the ROC curve over all candidates of the labeled slates."""
        with np.load(HERE / "validation.npz") as data:
            users, slates, labels = data["user"], data["slate"], data["label"]
        requests = [
            latfix.Request(
                id=f"validation-{row}",
                arrival_s=0.0,
                features={"history": int(self._length(int(user)))},
                payload={"user": int(user), "slate": int(slate)},
            )
            for row, (user, slate) in enumerate(zip(users, slates, strict=True))
        ]
        scores = np.array(predict(requests), dtype=np.float64).reshape(-1)
        return area_under_curve(scores, labels.reshape(-1))

    def _store(self) -> sqlite3.Connection:
        """This thread's connection; ``immutable`` because an installed folder may be read-only."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            address = (HERE / "features.sqlite").resolve().as_uri() + "?mode=ro&immutable=1"
            connection = sqlite3.connect(address, uri=True)
            self._local.connection = connection
        return connection

    def _read_statistics(self) -> dict[tuple[int, int], ItemStatistics]:
        cache: dict[tuple[int, int], ItemStatistics] = {}
        address = (HERE / "features.sqlite").resolve().as_uri() + "?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as store:
            for segment, packed in store.execute("SELECT id, statistics FROM segments"):
                counts = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(2, ITEMS).tolist()
                for index, (shown, clicked) in enumerate(zip(*counts, strict=True)):
                    rate = (clicked + 1.0) / (shown + 8.0)
                    cache[segment, index + 1] = ItemStatistics(shown, clicked, rate)
        return cache

    def _length(self, user: int) -> int:
        row = self._store().execute("SELECT length FROM users WHERE id = ?", (user,)).fetchone()
        return int(row[0])

    def _user(self, user: int) -> User:
        known = self._users.get(user)
        if known is not None:
            return known
        with latfix.span("feature_store"):
            row = self._store().execute("SELECT segment, history FROM users WHERE id = ?", (user,)).fetchone()
        if row is None:
            raise KeyError(f"user {user} is not in the feature store")
        items, kinds = unpack_history(row[1])
        history = [Event(item, kind) for item, kind in zip(items.tolist(), kinds.tolist(), strict=True)]
        return self._users.setdefault(user, User(int(row[0]), history))

    def _slate(self, slate: int) -> tuple[list[int], list[tuple[int, float, float]]]:
        with latfix.span("feature_store"):
            store = self._store()
            row = store.execute("SELECT items FROM slates WHERE id = ?", (slate,)).fetchone()
            if row is None:
                raise KeyError(f"slate {slate} is not in the feature store")
            wanted = np.frombuffer(row[0], dtype="<u2").tolist()
            marks = ",".join("?" * len(wanted))
            query = f"SELECT id, category, price, popularity FROM items WHERE id IN ({marks})"
            found = {item: rest for item, *rest in store.execute(query, wanted)}
        return wanted, [(found[i][0], found[i][1], found[i][2]) for i in wanted]


class LargeRanker(Ranker):
    """The same service with a network that keeps a GPU busy: 105 million weights, drawn from a seed.

    It is untrained, so there is no score: accuracy is agreement with its own answers.
    """

    evaluate = latfix.Workload.evaluate

    def load(self, device: str) -> torch.nn.Module:
        super().load("cpu")
        torch.manual_seed(0)
        model = RankerModel(width=1024, attention=1024, layers=8, heads=16, hidden=4096)
        with torch.no_grad():
            model.score_out.weight.mul_(50.0)  # so that answers differ
        return model.eval().to(device)


def pack_history(items: npt.NDArray[np.integer[Any]], kinds: npt.NDArray[np.integer[Any]]) -> bytes:
    """Store form of a history: all item ids as little-endian uint16, then all kinds as uint8."""
    return items.astype("<u2").tobytes() + kinds.astype(np.uint8).tobytes()


def unpack_history(packed: bytes) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """Undo :func:`pack_history`."""
    length = len(packed) // 3
    return (
        np.frombuffer(packed, dtype="<u2", count=length),
        np.frombuffer(packed, dtype=np.uint8, offset=2 * length),
    )


def area_under_curve(scores: npt.NDArray[np.float64], labels: npt.NDArray[Any]) -> float:
    """Probability that a clicked candidate scores above one that was not; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2.0)[inverse]
    positive = labels.astype(bool)
    n_positive = int(positive.sum())
    n_negative = len(labels) - n_positive
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2.0) / (n_positive * n_negative))
