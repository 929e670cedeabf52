"""Noise removal (Topaz: U-Net for micrographs): a crop of any height and width in, the same with less noise out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import PACKAGES

FILE = PACKAGES / "topaz" / "pretrained" / "denoise" / "unet_small_L1_v0.2.2.sav"


class Denoise(Workload):
    """Adapter. Features ``width`` and ``height``: of the crop, in pixels."""

    def load(self, device: str) -> torch.nn.Module:
        from topaz.denoising.models import UDenoiseNetSmall

        model = UDenoiseNetSmall(width=11, top_width=5)
        model.load_state_dict(torch.load(FILE, weights_only=True))
        return model.to(device).eval()

    def prepare(self, request: Request) -> torch.Tensor:
        random = np.random.default_rng(sum(map(ord, request.id)))
        rows, columns = int(request.features["height"]), int(request.features["width"])
        y, x = np.mgrid[:rows, :columns]
        image = np.zeros((rows, columns))
        for _ in range(rows * columns // 2000):  # round particles
            a, b, radius = random.uniform(0, rows), random.uniform(0, columns), random.uniform(4, 9)
            image -= np.exp(-((y - a) ** 2 + (x - b) ** 2) / (2 * radius**2))
        image += random.normal(0, 1.0, image.shape)
        image = (image - image.mean()) / image.std()
        return torch.from_numpy(image[None].astype(np.float32))

    def collate(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        rows, columns = (max(image.shape[k] for image in inputs) for k in (1, 2))
        batch = torch.zeros(len(inputs), 1, rows, columns)
        for place, image in enumerate(inputs):
            batch[place, :, : image.shape[1], : image.shape[2]] = image
        return batch

    def finish(self, output: torch.Tensor, request: Request) -> torch.Tensor:
        return output[0, : int(request.features["height"]), : int(request.features["width"])]
