"""The ground truth of the recommender: a synthetic shop, its users and their clicks.

All training and validation data come from here, from one seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ITEMS = 2048
CATEGORIES = 32
SEGMENTS = 128
CANDIDATES = 120
PER_CATEGORY = ITEMS // CATEGORIES
LATENT = 12
ACTION_WEIGHT = np.array([1.0, 2.5, 5.0])  # view, cart, purchase

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Users:
    """A group of users with histories of one length, newest event first.

    ``items`` counts from one; ``kinds`` is ``16 * action + age bucket``; both are (users, length).
    """

    segments: Ints
    items: Ints
    kinds: Ints


@dataclass(frozen=True, slots=True)
class World:
    """Items, segments and their tastes. Arrays over items are indexed from zero."""

    latent: Floats
    quality: Floats
    price: Floats
    popularity: Floats
    affinity: Floats
    shown: Ints
    clicked: Ints

    @classmethod
    def create(cls, seed: int) -> World:
        """Draw a world."""
        rng = np.random.default_rng(seed)
        centers = rng.normal(size=(CATEGORIES, LATENT))
        latent = np.repeat(centers, PER_CATEGORY, axis=0) + 0.6 * rng.normal(size=(ITEMS, LATENT))
        latent /= np.linalg.norm(latent, axis=1, keepdims=True)
        quality = 0.7 * rng.normal(size=ITEMS)
        price = rng.normal(size=ITEMS)
        popularity = np.exp(0.8 * rng.normal(size=ITEMS) + 0.3 * quality)
        affinity = 0.7 * rng.normal(size=(SEGMENTS, CATEGORIES))
        logit = quality - 1.2 + np.repeat(affinity, PER_CATEGORY, axis=1)
        rate = 1.0 / (1.0 + np.exp(-(logit + 0.4 * rng.normal(size=logit.shape))))
        shown = np.minimum(rng.poisson(20.0 * popularity / popularity.mean(), size=logit.shape), 255)
        clicked = rng.binomial(shown, rate)
        return cls(latent, quality, price, popularity, affinity, shown, clicked)

    def users(self, rng: np.random.Generator, count: int, length: int) -> Users:
        """Draw users whose interests drift: the newest events come from the current ones."""
        segments = rng.integers(SEGMENTS, size=count)
        interests = _choose(rng, np.exp(1.5 * self.affinity[segments]), 3)
        weight = rng.dirichlet([1.0, 1.0, 1.0], size=count)
        center = rng.random((count, 3))
        age = (np.arange(length) + 0.5) / length
        pull = weight[:, :, None] * np.exp(-8.0 * (age[None, None, :] - center[:, :, None]) ** 2)
        pick = _choose(rng, pull.transpose(0, 2, 1).reshape(-1, 3), 1).reshape(count, length)
        category = np.take_along_axis(interests, pick, axis=1)
        explores = rng.random((count, length)) < 0.2
        category = np.where(explores, rng.integers(CATEGORIES, size=category.shape), category)
        items = self._popular_item(rng, category)
        draw = rng.random((count, length))
        action = np.where(explores, 0, (draw > 0.7).astype(np.int64) + (draw > 0.92))
        hours = 0.5 * (np.arange(length) + 1.0) ** 1.5 * np.exp(0.2 * rng.normal(size=(count, length)))
        bucket = np.minimum(np.log2(hours + 1.0), 15.0).astype(np.int64)
        return Users(segments, items + 1, 16 * action + bucket)

    def slates(self, rng: np.random.Generator, users: Users) -> Ints:
        """Retrieved candidates: half near the user's history, half popular; (users, candidates), counted from one."""
        count, length = users.items.shape
        seen = np.take_along_axis(users.items, rng.integers(length, size=(count, CANDIDATES // 2)), axis=1)
        near = self._popular_item(rng, (seen - 1) // PER_CATEGORY)
        far = self._popular_item(rng, rng.integers(CATEGORIES, size=(count, CANDIDATES - CANDIDATES // 2)))
        mixed: Ints = rng.permuted(np.concatenate((near, far), axis=1), axis=1) + 1
        return mixed

    def clicks(self, rng: np.random.Generator, users: Users, slates: Ints) -> npt.NDArray[np.bool_]:
        """Draw the labels: interest by recent, strong events, plus quality, segment and price."""
        weight = ACTION_WEIGHT[users.kinds // 16] * np.exp(-(users.kinds % 16) / 2.5)
        weight /= weight.sum(axis=1, keepdims=True)
        events = self.latent[users.items - 1]
        candidates = self.latent[slates - 1]
        near = np.maximum(candidates @ events.transpose(0, 2, 1), 0.0) ** 2
        interest = np.einsum("ucl,ul->uc", near, weight)
        category = (slates - 1) // PER_CATEGORY
        logit = (
            9.0 * interest
            + self.quality[slates - 1]
            + self.affinity[users.segments[:, None], category]
            - 0.4 * self.price[slates - 1]
            - 3.6
        )
        drawn: npt.NDArray[np.bool_] = rng.random(logit.shape) < 1.0 / (1.0 + np.exp(-logit))
        return drawn

    def dense(self, users: Users, slates: Ints) -> npt.NDArray[np.float32]:
        """The candidates' dense features, as the adapter's ``prepare`` computes them."""
        shown = self.shown[users.segments[:, None], slates - 1]
        clicked = self.clicked[users.segments[:, None], slates - 1]
        return np.stack(
            (
                10.0 * (clicked + 1.0) / (shown + 8.0) - 1.0,
                np.log1p(shown) / 4.0,
                self.price[slates - 1],
                np.log(self.popularity[slates - 1]),
            ),
            axis=-1,
        ).astype(np.float32)

    def _popular_item(self, rng: np.random.Generator, category: Ints) -> Ints:
        """An item of each category, by popularity; indexed from zero."""
        cumulative = np.cumsum(self.popularity.reshape(CATEGORIES, PER_CATEGORY), axis=1)
        cumulative /= cumulative[:, -1:]
        rows = np.arange(CATEGORIES)[:, None] + cumulative  # one increasing sequence over all categories
        found = np.searchsorted(rows.reshape(-1), category + rng.random(category.shape) * (1.0 - 1e-9))
        return found.astype(np.int64)


def history_lengths(rng: np.random.Generator, count: int) -> Ints:
    """Heavy-tailed lengths: log-normal around 190 events; the service keeps the newest 1,500."""
    drawn = np.exp(np.log(190.0) + 0.88 * rng.normal(size=count))
    return np.clip(drawn, 12, 1500).astype(np.int64)


def _choose(rng: np.random.Generator, weights: Floats, count: int) -> Ints:
    """``count`` different columns of each row, by weight (exponential race)."""
    race: Any = rng.exponential(size=weights.shape) / weights
    picked: Ints = np.argsort(race, axis=1)[:, :count]
    return picked
