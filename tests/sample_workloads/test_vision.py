"""The vision sample: its adapter, its score, and the data committed with it."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

from latfix import Request, Workload

FOLDER = Path(__file__).parents[2] / "sample_workloads" / "vision"


def load_file(name: str) -> ModuleType:
    key = f"test_vision_{name}"
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
    workload: Workload = adapter.Inspector()
    workload.folder = FOLDER
    return workload, workload.load("cpu")


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / "traffic.jsonl").read_text().splitlines()]


def request_of(record: dict[str, Any]) -> Request:
    return Request(
        id=record["id"],
        arrival_s=record["arrival_s"],
        features={"resolution": record["resolution"]},
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


def one_of_each_resolution(records: list[dict[str, Any]]) -> list[Request]:
    first = {record["resolution"]: record for record in reversed(records)}
    return [request_of(first[side]) for side in sorted(first)]


def test_service_answers_with_class_and_probability(
    adapter: ModuleType, loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, model = loaded
    request = request_of(records[0])
    output = answers(workload, model, [request])[0]
    assert output.shape == (10,) and output.dtype == torch.float32
    answer = workload.finish(output, request)
    assert answer["class"] == adapter.CLASSES[int(output.argmax())]
    assert 0.1 <= answer["probability"] <= 1.0


def test_same_request_gives_the_same_answer_from_a_new_instance(
    adapter: ModuleType, loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    again: Workload = adapter.Inspector()
    requests = [request_of(record) for record in records[:3]]
    pairs = zip(answers(*loaded, requests), answers(again, again.load("cpu"), requests), strict=True)
    for one, two in pairs:
        assert torch.equal(one, two)


def test_padding_in_a_mixed_batch_changes_nothing(
    loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, model = loaded
    requests = one_of_each_resolution(records)
    assert len(requests) == 6
    with torch.inference_mode():
        batch = model(**workload.collate([workload.prepare(request) for request in requests]))
    for row, single in zip(batch, answers(workload, model, requests), strict=True):
        assert float((row - single).abs().max()) < 1e-4


def test_without_the_mask_padding_would_change_the_result(
    loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, model = loaded
    requests = one_of_each_resolution(records)
    batch = workload.collate([workload.prepare(request) for request in requests])
    with torch.inference_mode():
        masked, unmasked = model(**batch), model(batch["image"], torch.ones_like(batch["mask"]))
    assert float((masked[0] - unmasked[0]).abs().max()) > 0.1


def test_score_is_well_above_chance_and_falls_with_a_damaged_layer(
    loaded: tuple[Workload, torch.nn.Module],
) -> None:
    workload, model = loaded
    score = workload.evaluate(predictor(workload, model))
    assert 0.85 < score < 1.0
    damaged: Any = copy.deepcopy(model)
    with torch.no_grad():
        damaged.blocks[3].second.weight.zero_()
    assert workload.evaluate(predictor(workload, damaged)) < score - 0.1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_model_survives_lower_precision(
    precision: str, loaded: tuple[Workload, torch.nn.Module], records: list[dict[str, Any]]
) -> None:
    workload, model = loaded
    requests = one_of_each_resolution(records)
    exact = torch.stack(answers(workload, model, requests))
    if precision == "int8":
        quantize = torch.ao.quantization.quantize_dynamic
        changed = quantize(copy.deepcopy(model), {torch.nn.Linear}, torch.qint8)  # type: ignore[no-untyped-call]
    else:
        changed = copy.deepcopy(model).to(torch.bfloat16)
    batch = workload.collate([workload.prepare(request) for request in requests])
    if precision == "bf16":
        batch = {key: tensor.to(torch.bfloat16) for key, tensor in batch.items()}
    with torch.inference_mode():
        output = changed(**batch)
    assert output.dtype == torch.float32
    assert not torch.equal(output, exact)
    assert float(torch.corrcoef(torch.stack((output.flatten(), exact.flatten())))[0, 1]) > 0.99


def test_png_round_trip_uses_every_supported_filter(adapter: ModuleType) -> None:
    rng = np.random.default_rng(0)
    across = np.tile(np.arange(0, 160, 4, dtype=np.uint8), (13, 1))
    across[1::2] = rng.integers(256, size=(6, 40), dtype=np.uint8)
    images = (across, across.T.copy(), rng.integers(256, size=(8, 24), dtype=np.uint8))
    for pixels in images:
        assert np.array_equal(adapter.decode_png(adapter.encode_png(pixels)), pixels)


def test_png_is_what_another_decoder_reads(adapter: ModuleType) -> None:
    matplotlib.use("Agg")
    from matplotlib import image

    pixels = load_file("textures").render(np.random.default_rng(3), 4, 64)
    foreign = image.imread(io.BytesIO(adapter.encode_png(pixels)), format="png")
    assert np.array_equal(np.rint(foreign * 255.0).astype(np.uint8), pixels)


@pytest.mark.parametrize("damage", ["magic", "checksum"])
def test_damaged_png_is_refused(damage: str, adapter: ModuleType) -> None:
    data = bytearray(adapter.encode_png(np.zeros((8, 8), dtype=np.uint8)))
    data[0 if damage == "magic" else 20] ^= 1
    with pytest.raises(ValueError, match="PNG"):
        adapter.decode_png(bytes(data))


def test_normalization_ignores_brightness_and_contrast(adapter: ModuleType) -> None:
    pixels = np.random.default_rng(1).integers(60, 120, size=(64, 64)).astype(np.uint8)
    plain, brighter = adapter.normalize(pixels), adapter.normalize(2 * pixels + 10)
    assert plain.dtype == np.float32 and np.abs(plain - brighter).max() < 1e-5
    assert adapter.normalize(np.full((16, 16), 7, dtype=np.uint8)).tolist() == [[-1.0] * 16] * 16


def test_traffic_is_in_order_and_names_images_of_its_resolution(records: list[dict[str, Any]]) -> None:
    arrivals = np.array([record["arrival_s"] for record in records])
    assert 400 <= len(records) <= 1500
    assert len({record["id"] for record in records}) == len(records)
    assert (np.diff(arrivals) >= 0).all() and 40.0 <= arrivals[-1] <= 45.0
    with np.load(FOLDER / "images.npz") as images:
        resolutions = images["resolution"]
    assert all(resolutions[record["payload"]["image"]] == record["resolution"] for record in records)
    assert {record["resolution"] for record in records} == {64, 96, 128, 192, 256, 320}


def test_traffic_bursts_outrun_its_average_rate(records: list[dict[str, Any]]) -> None:
    counts = np.bincount([int(record["arrival_s"]) for record in records], minlength=42)
    assert counts.max() > 1.8 * counts.mean()


def test_committed_traffic_is_what_the_script_writes() -> None:
    assert load_file("train").traffic_lines().encode() == (FOLDER / "traffic.jsonl").read_bytes()


def test_committed_images_are_what_the_script_draws(adapter: ModuleType) -> None:
    train, textures = load_file("train"), load_file("textures")
    rng = np.random.default_rng(train.SEED)
    with np.load(FOLDER / "images.npz") as images:
        data, ends, labels = images["png"].tobytes(), images["end"].tolist(), images["label"].tolist()
    for index, (start, end) in enumerate(zip([0, *ends[:4]], ends[:5], strict=True)):
        assert labels[index] == index % 10
        drawn = textures.render(rng, labels[index], 64)
        kept = adapter.decode_png(data[start:end])
        # Another NumPy may round a sine differently, which moves a few pixels by one gray level.
        assert (drawn != kept).mean() < 0.01


def test_files_are_small_and_settings_name_the_adapter(adapter: ModuleType) -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= 5_000_000
    assert (FOLDER / "images.npz").stat().st_size <= 2_000_000
    settings = tomllib.loads((FOLDER / "workload.toml").read_text())
    file, name = settings["workload"]["entry"].split(":")
    assert (FOLDER / f"{file}.py").is_file() and issubclass(getattr(adapter, name), Workload)
    assert (FOLDER / settings["workload"]["traffic"]).is_file()
