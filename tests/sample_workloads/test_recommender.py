"""The recommender sample: its adapter, its score, and the data committed with it."""

from __future__ import annotations

import copy
import importlib.util
import json
import sqlite3
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from latfix import Request, Workload

FOLDER = Path(__file__).parents[2] / "sample_workloads" / "recommender"


def load_file(name: str) -> ModuleType:
    key = f"test_recommender_{name}"
    spec = importlib.util.spec_from_file_location(key, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def adapter() -> ModuleType:
    return load_file("workload")


@pytest.fixture(scope="module")
def loaded(adapter: ModuleType) -> tuple[Workload, torch.nn.Module]:
    torch.set_num_threads(1)
    workload: Workload = adapter.Ranker()
    workload.folder = FOLDER
    return workload, workload.load("cpu")


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / "traffic.jsonl").read_text().splitlines()]


def request_of(record: dict[str, Any]) -> Request:
    return Request(
        id=record["id"],
        arrival_s=record["arrival_s"],
        features={"history": record["history"], "candidates": record["candidates"]},
        payload=record["payload"],
    )


def answers(workload: Workload, model: torch.nn.Module, requests: list[Request]) -> list[torch.Tensor]:
    """One request at a time."""
    with torch.inference_mode():
        return [model(**workload.collate([workload.prepare(request)]))[0] for request in requests]


def predictor(workload: Workload, model: torch.nn.Module) -> Callable[[list[Request]], list[Any]]:
    def predict(requests: list[Request]) -> list[Any]:
        outputs = zip(answers(workload, model, requests), requests, strict=True)
        return [workload.finish(output, request) for output, request in outputs]

    return predict


def some(records: list[dict[str, Any]], count: int, below: int = 400) -> list[Request]:
    return [request_of(record) for record in records if record["history"] < below][:count]


def test_service_answers_with_a_probability_for_each_candidate(
    loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, model = loaded
    request = some(records, 1)[0]
    output = answers(workload, model, [request])[0]
    assert output.shape == (120,) and output.dtype == torch.float32
    answer = workload.finish(output, request)
    assert len(answer) == 120 and all(0.0 < p < 1.0 for p in answer)
    assert float(np.std(answer)) > 0.01


def test_same_request_gives_the_same_answer_from_a_new_instance(
    adapter: ModuleType, loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, model = loaded
    again: Workload = adapter.Ranker()
    again_model = again.load("cpu")
    requests = some(records, 3)
    for one, two in zip(answers(workload, model, requests), answers(again, again_model, requests), strict=True):
        assert torch.equal(one, two)


def test_padding_in_a_mixed_batch_changes_nothing(
    loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, model = loaded
    by_length = sorted(records, key=lambda record: int(record["history"]))
    chosen = [by_length[int(q * (len(by_length) - 1))] for q in (0.0, 0.2, 0.5, 0.8, 0.97)]
    requests = [request_of(record) for record in chosen]
    with torch.inference_mode():
        batch = model(**workload.collate([workload.prepare(request) for request in requests]))
    for row, single in zip(batch, answers(workload, model, requests), strict=True):
        assert float((row - single).abs().max()) < 1e-4


def test_history_decides_the_ranking(loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]) -> None:
    workload, model = loaded
    one, two = (workload.prepare(request) for request in some(records, 2))
    with torch.inference_mode():
        own = model(**workload.collate([one]))
        foreign = model(**workload.collate([{**one, "items": two["items"], "events": two["events"]}]))
    assert float((own - foreign).abs().mean()) > 0.05


def test_score_is_well_above_chance_and_falls_with_a_damaged_layer(
    loaded: tuple[Workload, torch.nn.Module],
) -> None:
    workload, model = loaded
    score = workload.evaluate(predictor(workload, model))
    assert 0.82 < score < 0.90
    damaged: Any = copy.deepcopy(model)
    with torch.no_grad():
        damaged.target_value.weight.zero_()
    assert workload.evaluate(predictor(workload, damaged)) < score - 0.05


def test_area_under_curve_against_pairs_counted_one_by_one(adapter: ModuleType) -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, size=60).astype(np.float64)
    labels = rng.random(60) < 0.3
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[labels] for n in scores[~labels]]
    assert adapter.area_under_curve(scores, labels) == pytest.approx(float(np.mean(pairs)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_model_survives_lower_precision(
    precision: str, loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, model = loaded
    requests = some(records, 4)
    exact = torch.stack(answers(workload, model, requests))
    if precision == "int8":
        quantize = torch.ao.quantization.quantize_dynamic
        changed = quantize(copy.deepcopy(model), {torch.nn.Linear}, torch.qint8)  # type: ignore[no-untyped-call]
    else:
        changed = copy.deepcopy(model).to(torch.bfloat16)
    batch = workload.collate([workload.prepare(request) for request in requests])
    if precision == "bf16":
        batch = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in batch.items()}
    with torch.inference_mode():
        output = changed(**batch)
    assert output.dtype == torch.float32
    assert not torch.equal(output, exact)
    assert float(torch.corrcoef(torch.stack((output.flatten(), exact.flatten())))[0, 1]) > 0.99


def test_feature_cache_holds_hundreds_of_thousands_of_objects_and_grows(
    loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload: Any = loaded[0]
    assert len(workload._statistics) > 200_000
    unseen = next(record for record in records if record["payload"]["user"] not in workload._users)
    workload.prepare(request_of(unseen))
    assert len(workload._users[unseen["payload"]["user"]].history) == unseen["history"]


def test_unknown_user_is_an_error_of_that_request_alone(
    loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, _ = loaded
    with pytest.raises(KeyError, match="99999"):
        workload.prepare(Request(id="x", arrival_s=0.0, payload={"user": 99999, "slate": 0}))
    assert workload.prepare(some(records, 1)[0])["items"].dtype == torch.int64


def test_traffic_is_in_order_heavy_tailed_and_agrees_with_the_store(records: list[dict[str, Any]]) -> None:
    arrivals = np.array([record["arrival_s"] for record in records])
    lengths = np.array([record["history"] for record in records])
    assert 400 <= len(records) <= 1500
    assert len({record["id"] for record in records}) == len(records)
    assert (np.diff(arrivals) >= 0).all() and 40.0 <= arrivals[-1] <= 45.0
    assert np.quantile(lengths, 0.99) > 4 * np.median(lengths)
    with closing(sqlite3.connect(f"{(FOLDER / 'features.sqlite').as_uri()}?immutable=1", uri=True)) as store:
        stored = dict(store.execute("SELECT id, length FROM users"))
        packed = dict(store.execute("SELECT id, length(history) FROM users"))
    assert all(stored[record["payload"]["user"]] == record["history"] for record in records)
    assert all(packed[user] == 3 * length for user, length in stored.items())


def test_traffic_bursts_outrun_its_average_rate(records: list[dict[str, Any]]) -> None:
    counts = np.bincount([int(record["arrival_s"]) for record in records], minlength=42)
    assert counts.max() > 1.8 * counts.mean()


def test_committed_traffic_is_what_the_script_writes() -> None:
    train = load_file("train")
    text = train.traffic_lines(FOLDER / "features.sqlite")
    assert text.encode() == (FOLDER / "traffic.jsonl").read_bytes()


def test_store_histories_are_what_the_script_draws(adapter: ModuleType) -> None:
    train, world_module = load_file("train"), load_file("world")
    world = world_module.World.create(train.SEED)
    rng = np.random.default_rng(train.SEED + 1)
    lengths = world_module.history_lengths(rng, train.TRAFFIC_USERS + train.VALIDATION_USERS)
    first = world.users(rng, 1, int(lengths[0]))
    with closing(sqlite3.connect(f"{(FOLDER / 'features.sqlite').as_uri()}?immutable=1", uri=True)) as store:
        (packed,) = store.execute("SELECT history FROM users WHERE id = 0").fetchone()
    items, kinds = adapter.unpack_history(packed)
    assert items.tolist() == first.items[0].tolist() and kinds.tolist() == first.kinds[0].tolist()


def test_files_are_small_and_settings_name_the_adapter(adapter: ModuleType) -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 5_000_000
    assert (FOLDER / "validation.npz").stat().st_size <= 2_000_000
    settings = tomllib.loads((FOLDER / "workload.toml").read_text())
    file, name = settings["workload"]["entry"].split(":")
    assert (FOLDER / f"{file}.py").is_file() and issubclass(getattr(adapter, name), Workload)
    assert (FOLDER / settings["workload"]["traffic"]).is_file()
