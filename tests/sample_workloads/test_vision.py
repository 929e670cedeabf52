"""The vision sample: images, mask, and committed data."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest
import torch

from latfix import Request
from tests.sample_workloads.conftest import VISION, answers


def one_of_each_resolution() -> list[Request]:
    first = {record["resolution"]: record for record in reversed(VISION.records())}
    return [VISION.request(first[side]) for side in sorted(first)]


def test_service_answers_with_class_and_probability() -> None:
    workload, model = VISION.loaded()
    request = VISION.request(VISION.records()[0])
    output = answers(workload, model, [request])[0]
    assert output.shape == (10,)
    answer = workload.finish(output, request)
    assert answer["class"] == VISION.module().CLASSES[int(output.argmax())]
    assert 0.1 <= answer["probability"] <= 1.0


def test_without_the_mask_padding_would_change_the_result() -> None:
    workload, model = VISION.loaded()
    requests = one_of_each_resolution()
    assert len(requests) == 6
    batch = workload.collate([workload.prepare(request) for request in requests])
    with torch.inference_mode():
        masked, unmasked = model(**batch), model(batch["image"], torch.ones_like(batch["mask"]))
    assert float((masked[0] - unmasked[0]).abs().max()) > 0.1


def test_png_round_trip_uses_every_supported_filter() -> None:
    rng = np.random.default_rng(0)
    across = np.tile(np.arange(0, 160, 4, dtype=np.uint8), (13, 1))
    across[1::2] = rng.integers(256, size=(6, 40), dtype=np.uint8)
    images = (across, across.T.copy(), rng.integers(256, size=(8, 24), dtype=np.uint8))
    for pixels in images:
        assert np.array_equal(VISION.module().decode_png(VISION.module().encode_png(pixels)), pixels)


def test_png_agrees_with_another_decoder() -> None:
    matplotlib.use("Agg")
    from matplotlib import image

    pixels = VISION.module("textures").render(np.random.default_rng(3), 4, 64)
    foreign = image.imread(io.BytesIO(VISION.module().encode_png(pixels)), format="png")
    assert np.array_equal(np.rint(foreign * 255.0).astype(np.uint8), pixels)


@pytest.mark.parametrize("damage", ["magic", "checksum"])
def test_damaged_png_is_refused(damage: str) -> None:
    data = bytearray(VISION.module().encode_png(np.zeros((8, 8), dtype=np.uint8)))
    data[0 if damage == "magic" else 20] ^= 1
    with pytest.raises(ValueError, match="PNG"):
        VISION.module().decode_png(bytes(data))


def test_normalization_ignores_brightness_and_contrast() -> None:
    pixels = np.random.default_rng(1).integers(60, 120, size=(64, 64)).astype(np.uint8)
    plain, brighter = VISION.module().normalize(pixels), VISION.module().normalize(2 * pixels + 10)
    assert plain.dtype == np.float32 and np.abs(plain - brighter).max() < 1e-5
    assert VISION.module().normalize(np.full((16, 16), 7, dtype=np.uint8)).tolist() == [[-1.0] * 16] * 16


def test_traffic_names_images_of_its_resolution() -> None:
    with np.load(VISION.folder / "images.npz") as images:
        resolutions = images["resolution"]
    records = VISION.records()
    assert all(resolutions[record["payload"]["image"]] == record["resolution"] for record in records)
    assert {record["resolution"] for record in records} == {64, 96, 128, 192, 256, 320}


def test_committed_images_are_reproduced_by_the_script() -> None:
    train, textures = VISION.module("train"), VISION.module("textures")
    rng = np.random.default_rng(train.SEED)
    with np.load(VISION.folder / "images.npz") as images:
        data, ends, labels = images["png"].tobytes(), images["end"].tolist(), images["label"].tolist()
    for index, (start, end) in enumerate(zip([0, *ends[:4]], ends[:5], strict=True)):
        assert labels[index] == index % 10
        drawn = textures.render(rng, labels[index], 64)
        kept = VISION.module().decode_png(data[start:end])
        # Another NumPy may round a sine differently, which moves a few pixels by one gray level.
        assert (drawn != kept).mean() < 0.01
