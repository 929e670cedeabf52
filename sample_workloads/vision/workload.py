"""A surface-inspection service: classifies ten textures in grayscale camera images.

A request contains the index of an image. ``prepare`` decodes its PNG and normalizes it; images come in several
resolutions, so a batch is padded to its largest image, and a mask excludes the padding from the result.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import nn

import latfix

HERE = Path(__file__).parent

CLASSES = (
    "stripes",
    "checker",
    "dots",
    "rings",
    "waves",
    "bricks",
    "crosshatch",
    "blobs",
    "speckle",
    "zigzag",
)
STRIDE = 8  # of the whole network; resolutions are multiples of it, so that grids agree with and without padding


class Block(nn.Module):
    """Residual block. The mask resets padding to zero, as at the edge of an image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first_norm(self.first(x))) * mask
        y = self.second_norm(self.second(y)) + self.shortcut(x)
        return torch.relu(y) * mask


class InspectorModel(nn.Module):
    """Residual network, masked average pooling, two-layer classifier.

    Inputs: ``image`` (batch, 1, height, width) floating, zero where padded, sides multiples of 8;
    ``mask`` of the same shape, one inside the image. Output: class logits (batch, 10) float32.
    """

    def __init__(self, wider: int = 1, deeper: int = 1) -> None:
        """:param wider: times as many channels; ``deeper`` times as many blocks."""
        super().__init__()
        self.stem = nn.Conv2d(1, 32 * wider, 5, 2, 2, bias=False)
        self.stem_norm = nn.BatchNorm2d(32 * wider)
        widths = ((32, 48, 1), (48, 96, 2), (96, 96, 1), (96, 160, 2), (160, 160, 1))
        blocks: list[Block] = []
        for inputs, outputs, stride in widths:
            blocks.append(Block(inputs * wider, outputs * wider, stride))
            blocks += [Block(outputs * wider, outputs * wider, 1) for _ in range(deeper - 1)]
        self.blocks = nn.ModuleList(blocks)
        self.hidden = nn.Linear(160 * wider, 512)
        self.classes = nn.Linear(512, len(CLASSES))

    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mask = mask[:, :, ::2, ::2]
        x = torch.relu(self.stem_norm(self.stem(image))) * mask
        for block in self.blocks:
            if block.first.stride[0] == 2:
                mask = mask[:, :, ::2, ::2]
            x = block(x, mask)
        # Summed in float32, because half precision would round a large image's pixel count.
        pooled = x.float().sum((2, 3)) / mask.float().sum((2, 3))
        return self.classes(torch.relu(self.hidden(pooled.to(x.dtype)))).float()


class Inspector(latfix.Workload):
    """Adapter of the inspection service."""

    def load(self, device: str) -> torch.nn.Module:
        model = InspectorModel()
        weights = load_file(str(HERE / "model.safetensors"))
        # The file has matrices in half precision to be small; the service computes in float32.
        model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in weights.items()})
        with np.load(HERE / "images.npz") as images:
            self._bytes = images["png"].tobytes()
            self._ends = images["end"].tolist()
            self._labels = images["label"].tolist()
            self._resolutions = images["resolution"].tolist()
        return model.eval().to(device)

    def prepare(self, request: latfix.Request) -> torch.Tensor:
        index = int(request.payload["image"])
        start = self._ends[index - 1] if index else 0
        pixels = decode_png(self._bytes[start : self._ends[index]])
        return torch.from_numpy(normalize(pixels))

    def collate(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Pad each image to the largest of the batch."""
        height = max(image.shape[0] for image in inputs)
        width = max(image.shape[1] for image in inputs)
        batch = {key: torch.zeros(len(inputs), 1, height, width) for key in ("image", "mask")}
        for row, image in enumerate(inputs):
            batch["image"][row, 0, : image.shape[0], : image.shape[1]] = image
            batch["mask"][row, 0, : image.shape[0], : image.shape[1]] = 1.0
        return batch

    def finish(self, output: torch.Tensor, request: latfix.Request) -> dict[str, Any]:
        """The class and its probability."""
        del request
        probability, index = torch.softmax(output.float(), dim=0).max(dim=0)
        return {"class": CLASSES[int(index)], "probability": float(probability)}

    def evaluate(self, predict: Callable[[list[latfix.Request]], list[Any]]) -> float:
        """Share of the labeled images that are classified correctly."""
        requests = [
            latfix.Request(
                id=f"validation-{index}",
                arrival_s=0.0,
                features={"resolution": resolution},
                payload={"image": index},
            )
            for index, resolution in enumerate(self._resolutions)
        ]
        answers = zip(predict(requests), self._labels, strict=True)
        right = sum(answer["class"] == CLASSES[label] for answer, label in answers)
        return right / len(self._labels)


class LargeInspector(Inspector):
    """The same service with a network that keeps a GPU busy: 40 million weights, drawn from a seed.

    It is untrained, so there is no score: accuracy is agreement with its own answers.
    """

    evaluate = latfix.Workload.evaluate

    def load(self, device: str) -> torch.nn.Module:
        super().load("cpu")
        torch.manual_seed(0)
        model = InspectorModel(wider=4, deeper=2)
        with torch.no_grad():
            model.classes.weight.mul_(50.0)  # so that answers differ
        return model.eval().to(device)


def normalize(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Stretch contrast between the 2nd and the 98th percentile, as a camera pipeline does, to about ±1."""
    low, high = (np.float32(level) for level in np.percentile(pixels, (2.0, 98.0)))
    scaled = (pixels.astype(np.float32) - low) / np.maximum(high - low, np.float32(1.0))
    return scaled * np.float32(2.0) - np.float32(1.0)


def decode_png(data: bytes) -> npt.NDArray[np.uint8]:
    """Pixels of an 8-bit grayscale PNG whose rows use the filters None, Sub or Up.

    :raises ValueError: another format, or a damaged file.
    """
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("not a PNG file")
    place, header, packed = 8, b"", b""
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (check,) = struct.unpack_from(">I", data, place + 8 + length)
        if zlib.crc32(kind + body) != check:
            raise ValueError(f"PNG chunk {kind!r} is damaged: its checksum does not agree")
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            packed += body
        place += 12 + length
    width, height, *layout = struct.unpack(">IIBBBBB", header)
    if layout != [8, 0, 0, 0, 0]:
        raise ValueError(f"PNG is not 8-bit grayscale without interlace: {layout}")
    rows = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(height, width + 1)
    out = rows[:, 1:].copy()
    for row, kind_of_filter in enumerate(rows[:, 0].tolist()):
        if kind_of_filter == 1:
            np.cumsum(out[row], dtype=np.uint8, out=out[row])
        elif kind_of_filter == 2 and row:
            out[row] += out[row - 1]
        elif kind_of_filter > 2:
            raise ValueError(f"PNG filter {kind_of_filter} is not supported (0, 1 and 2 are)")
    return out


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """An 8-bit grayscale PNG, each row with the filter whose result has the smallest sum of magnitudes."""
    height, width = pixels.shape
    left = np.diff(pixels, axis=1, prepend=np.uint8(0))
    up = np.diff(pixels, axis=0, prepend=np.zeros((1, width), dtype=np.uint8))
    choices = np.stack((pixels, left, up))
    cost = np.abs(choices.view(np.int8).astype(np.int64)).sum(axis=2)
    best = cost.argmin(axis=0)
    body = np.concatenate((best.astype(np.uint8)[:, None], choices[best, np.arange(height)]), axis=1)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(body.tobytes(), 9)),
        (b"IEND", b""),
    )
    framed = (
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
