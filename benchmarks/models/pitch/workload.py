"""A pitch network (CREPE tiny: six convolutions) in a service that tracks the pitch of recordings.

A recording is cut into windows of 64 ms, one every 10 ms. Score: share of windows of synthesized tones (harmonics in
noise, 65 to 880 Hz) whose pitch is within 50 cents of the true one.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import PACKAGES, RATE, Audio, case_of, labeled, talk

WINDOW, HOP, BINS = 1024, 160, 360
TONES = np.geomspace(65, 880, 40)
FRAMES_A_TONE = 4


class PitchNetwork(torch.nn.Module):
    """The published network over the windows of a batch: (batch, frames, 1024) → (batch, frames, 360)."""

    def __init__(self, crepe: torch.nn.Module) -> None:
        super().__init__()
        self.crepe = crepe

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        return self.crepe(windows.flatten(0, 1)).unflatten(0, windows.shape[:2])


class Pitch(Workload):
    """Adapter. Feature ``frames``: length of the recording."""

    def load(self, device: str) -> torch.nn.Module:
        crepe = _published_network()("tiny")
        file = PACKAGES / "torchcrepe" / "assets" / "tiny.pth"
        crepe.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        return PitchNetwork(crepe).eval().to(device)

    def prepare(self, request: Request) -> torch.Tensor:
        frames = _frames(request)
        length = WINDOW + (frames - 1) * HOP
        case = case_of(request)
        audio = talk(request, length / RATE) if case is None else tone(case, length)
        windows = np.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::HOP][:frames]
        windows = windows - windows.mean(1, keepdims=True)
        return torch.from_numpy(windows / np.maximum(windows.std(1, keepdims=True), 1e-10))

    def finish(self, output: torch.Tensor, request: Request) -> list[float]:
        """Hertz of each window: the mean of the bins around the highest one, weighted."""
        salience = output[: _frames(request)].float()
        around = (torch.arange(BINS) - salience.argmax(1, keepdim=True)).abs() <= 4
        weight = salience * around
        cents = (weight * (20.0 * torch.arange(BINS) + 1997.3794)).sum(1) / weight.sum(1)
        return [float(value) for value in 10 * 2 ** (cents / 1200)]

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        answers = np.array(predict(labeled(range(len(TONES)), frames=FRAMES_A_TONE)))
        off = 1200 * np.abs(np.log2(answers / TONES[:, None]))
        return float((off <= 50).mean())


def tone(which: int, length: int) -> Audio:
    """Harmonics that fall by a third each, in noise 10 dB below."""
    rng = np.random.default_rng(which)
    phase = 2 * np.pi * TONES[which] * np.arange(length) / RATE
    clean = sum(np.sin(k * phase + rng.uniform(0, 6.28)) * 0.67**k for k in range(1, 9))
    return (clean + rng.standard_normal(length) * np.std(clean) * 0.32).astype(np.float32)


def _frames(request: Request) -> int:
    return max(int(request.features["frames"]), 1)


def _published_network() -> Any:
    """The module's class in torchcrepe, without importing the package, which needs audio libraries."""
    package = types.ModuleType("torchcrepe")
    package.PITCH_BINS = BINS  # type: ignore[attr-defined]
    package.__path__ = [str(PACKAGES / "torchcrepe")]  # torch.compile imports torchcrepe.model by its name
    sys.modules.setdefault("torchcrepe", package)
    return importlib.import_module("torchcrepe.model").Crepe
