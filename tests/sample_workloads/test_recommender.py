"""The recommender sample: features, ranking, and the committed store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from latfix import Request
from tests.sample_workloads.conftest import RECOMMENDER, answers, batch_output

STORE = f"{(RECOMMENDER.folder / 'features.sqlite').as_uri()}?immutable=1"


def some(count: int) -> list[Request]:
    short = [record for record in RECOMMENDER.records() if record["history"] < 400]
    return [RECOMMENDER.request(record) for record in short[:count]]


def test_service_answers_with_a_probability_for_each_candidate() -> None:
    workload, model = RECOMMENDER.loaded()
    (request,) = some(1)
    output = answers(workload, model, [request])[0]
    assert output.shape == (120,)
    answer = workload.finish(output, request)
    assert len(answer) == 120 and all(0.0 < p < 1.0 for p in answer)
    assert float(np.std(answer)) > 0.01


def test_history_decides_the_ranking() -> None:
    workload, model = RECOMMENDER.loaded()
    one, two = (workload.prepare(request) for request in some(2))
    own = batch_output(workload, model, some(1))
    with torch.inference_mode():
        foreign = model(**workload.collate([{**one, "items": two["items"], "events": two["events"]}]))
    assert float((own - foreign).abs().mean()) > 0.05


def test_area_under_curve_against_pairs_counted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, size=60).astype(np.float64)
    labels = rng.random(60) < 0.3
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels] for n in scores[~labels]]
    assert RECOMMENDER.module().area_under_curve(scores, labels) == pytest.approx(float(np.mean(pairs)))


def test_feature_cache_holds_hundreds_of_thousands_of_objects_and_grows() -> None:
    workload: Any = RECOMMENDER.loaded()[0]
    assert len(workload._statistics) > 200_000
    unseen = next(record for record in RECOMMENDER.records() if record["payload"]["user"] not in workload._users)
    workload.prepare(RECOMMENDER.request(unseen))
    assert len(workload._users[unseen["payload"]["user"]].history) == unseen["history"]


def test_unknown_user_is_an_error_of_only_that_request() -> None:
    workload, _ = RECOMMENDER.loaded()
    with pytest.raises(KeyError, match="99999"):
        workload.prepare(Request(id="x", arrival_s=0.0, payload={"user": 99999, "slate": 0}))
    assert workload.prepare(some(1)[0])["items"].dtype == torch.int64


def test_traffic_is_heavy_tailed_and_agrees_with_the_store() -> None:
    records = RECOMMENDER.records()
    lengths = np.array([record["history"] for record in records])
    assert np.quantile(lengths, 0.99) > 4 * np.median(lengths)
    with closing(sqlite3.connect(STORE, uri=True)) as store:
        stored = dict(store.execute("SELECT id, length FROM users"))
        packed = dict(store.execute("SELECT id, length(history) FROM users"))
    assert all(stored[record["payload"]["user"]] == record["history"] for record in records)
    assert all(packed[user] == 3 * length for user, length in stored.items())


def test_store_histories_are_reproduced_by_the_script() -> None:
    train, world_module = RECOMMENDER.module("train"), RECOMMENDER.module("world")
    world = world_module.World.create(train.SEED)
    rng = np.random.default_rng(train.SEED + 1)
    lengths = world_module.history_lengths(rng, train.TRAFFIC_USERS + train.VALIDATION_USERS)
    first = world.users(rng, 1, int(lengths[0]))
    with closing(sqlite3.connect(STORE, uri=True)) as store:
        (packed,) = store.execute("SELECT history FROM users WHERE id = 0").fetchone()
    items, kinds = RECOMMENDER.module().unpack_history(packed)
    assert items.tolist() == first.items[0].tolist() and kinds.tolist() == first.kinds[0].tolist()
