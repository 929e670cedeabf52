"""Common tests of the samples: answers, score, traffic and committed data."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from latfix import Request, Workload
from latfix.settings import Objective, RunnerSettings
from tests.sample_workloads.conftest import (
    ASSISTANT,
    RECOMMENDER,
    VISION,
    Sample,
    answers,
    batch_output,
    predictor,
)

#: A thread of the sample keeps its connection to the store until it ends; Python 3.13 mentions that.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")

_SIZES = {"recommender": "history", "vision": "resolution"}
every = pytest.mark.parametrize("sample", [RECOMMENDER, VISION, ASSISTANT], ids=lambda sample: sample.name)
ranked = pytest.mark.parametrize("sample", [RECOMMENDER, VISION], ids=lambda sample: sample.name)


def _of_all_sizes(sample: Sample) -> list[Request]:
    """Six requests, from the shortest to nearly the longest."""
    sizes = sorted(sample.records(), key=lambda record: int(record[_SIZES[sample.name]]))
    return [sample.request(sizes[int(q * (len(sizes) - 1))]) for q in (0.0, 0.2, 0.4, 0.6, 0.8, 0.97)]


@ranked
def test_same_request_gives_the_same_answer_from_a_new_instance(sample: Sample) -> None:
    requests = [sample.request(record) for record in sample.records()[:3]]
    again = sample.adapter()
    for one, two in zip(
        answers(*sample.loaded(), requests), answers(again, again.load("cpu"), requests), strict=True
    ):
        assert one.dtype == torch.float32 and torch.equal(one, two)


@ranked
def test_padding_in_a_mixed_batch_changes_nothing(sample: Sample) -> None:
    requests = _of_all_sizes(sample)
    batch = batch_output(*sample.loaded(), requests)
    for row, single in zip(batch, answers(*sample.loaded(), requests), strict=True):
        assert float((row - single).abs().max()) < 1e-4


def _without_targets(model: Any) -> None:
    model.target_value.weight.zero_()


def _without_a_block(model: Any) -> None:
    model.blocks[3].second.weight.zero_()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "low", "high", "damage", "loss"),
    [(RECOMMENDER, 0.82, 0.90, _without_targets, 0.05), (VISION, 0.85, 1.0, _without_a_block, 0.1)],
    ids=["recommender", "vision"],
)
def test_score_is_well_above_chance_and_falls_with_a_damaged_layer(
    sample: Sample, low: float, high: float, damage: Callable[[Any], None], loss: float
) -> None:
    workload, model = sample.loaded()
    damaged = copy.deepcopy(model)
    with torch.no_grad():
        damage(damaged)
    known: list[Any] = []

    def exact(requests: list[Request]) -> list[Any]:
        known[:] = predictor(workload, model)(requests)
        return known

    def a_quarter_damaged(requests: list[Request]) -> list[Any]:
        part = len(requests) // 4
        return predictor(workload, damaged)(requests[:part]) + known[part:]

    score = workload.evaluate(exact)
    assert low < score < high
    assert workload.evaluate(a_quarter_damaged) < score - loss / 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("precision", ["int8", "bf16"])
@ranked
def test_model_survives_lower_precision(sample: Sample, precision: str) -> None:
    workload, model = sample.loaded()
    short = [record for record in sample.records() if int(record[_SIZES[sample.name]]) < 400]
    # Slates have one length; images of one size are enough.
    requests = [sample.request(record) for record in short[:4]]
    exact = batch_output(workload, model, requests)
    batch = workload.collate([workload.prepare(request) for request in requests])
    if precision == "int8":
        quantize = torch.ao.quantization.quantize_dynamic
        changed = quantize(copy.deepcopy(model), {torch.nn.Linear}, torch.qint8)  # type: ignore[no-untyped-call]
    else:
        changed = copy.deepcopy(model).to(torch.bfloat16)
        batch = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in batch.items()}
    with torch.inference_mode():
        output = changed(**batch)
    assert output.dtype == torch.float32
    assert not torch.equal(output, exact)
    assert float(torch.corrcoef(torch.stack((output.flatten(), exact.flatten())))[0, 1]) > 0.99


@every
def test_traffic_is_in_order(sample: Sample) -> None:
    records = sample.records()
    arrivals = np.array([record["arrival_s"] for record in records])
    assert 400 <= len(records) <= 1500
    assert len({record["id"] for record in records}) == len(records)
    assert (np.diff(arrivals) >= 0).all() and 38.0 < arrivals[-1] <= 45.0


@ranked
def test_traffic_bursts_exceed_its_average_rate(sample: Sample) -> None:
    counts = np.bincount([int(record["arrival_s"]) for record in sample.records()], minlength=42)
    assert counts.max() > 1.8 * counts.mean()


def test_committed_traffic_and_texts_are_what_the_scripts_write() -> None:
    store = RECOMMENDER.folder / "features.sqlite"
    assert RECOMMENDER.module("train").traffic_lines(store).encode() == _bytes(RECOMMENDER, "traffic.jsonl")
    assert VISION.module("train").traffic_lines().encode() == _bytes(VISION, "traffic.jsonl")
    train = ASSISTANT.module("train")
    for name, lines in [("traffic.jsonl", train.traffic_lines()), ("validation.jsonl", train.validation_lines())]:
        assert _bytes(ASSISTANT, name) == ("\n".join(lines) + "\n").encode()


def _bytes(sample: Sample, name: str) -> bytes:
    return (sample.folder / name).read_bytes()


@every
def test_files_are_small_and_settings_are_known_ones(sample: Sample) -> None:
    assert (sample.folder / "model.safetensors").stat().st_size <= 5_000_000
    for name in ("validation.jsonl", "validation.npz", "images.npz"):
        assert not (sample.folder / name).exists() or (sample.folder / name).stat().st_size <= 2_000_000
    assert [p for p in sample.folder.iterdir() if p.is_dir() and p.name != "__pycache__"] == []
    settings = tomllib.loads((sample.folder / "workload.toml").read_text())
    file, name = settings["workload"]["entry"].split(":")
    kind = getattr(sample.module(file), name)
    assert issubclass(kind, Workload) and kind.has_evaluate() and name == sample.entry
    assert (sample.folder / settings["workload"]["traffic"]).is_file()
    assert set(settings["runner"]) <= {f.name for f in fields(RunnerSettings)}
    assert set(settings["objective"]) <= {f.name for f in fields(Objective)}
