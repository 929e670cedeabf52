"""Voice activity detection (Silero, TorchScript): the probability of speech for each 32 ms of a recording.

Score: share of correctly classified segments of synthesized speech with pauses, in noise 15 dB below. The truth
comes from the speech without noise: a segment is speech if it is within 30 dB of the loudest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import PACKAGES, RATE, Audio, case_of, labeled, speech, talk

PIECE = 512


class Detector(torch.nn.Module):
    """The published module over whole recordings: (batch, samples) → probability (batch, pieces)."""

    def __init__(self, published: torch.nn.Module) -> None:
        super().__init__()
        self.published = published

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        self.published.reset_states()
        return self.published.audio_forward(audio, RATE)


class VoiceActivity(Workload):
    """Adapter. Feature ``seconds``: length of the recording."""

    def load(self, device: str) -> torch.nn.Module:
        published = torch.jit.load(PACKAGES / "silero_vad" / "data" / "silero_vad.jit", map_location=device)
        return Detector(published).eval()

    def prepare(self, request: Request) -> torch.Tensor:
        return torch.from_numpy(_audio(request))

    def finish(self, output: torch.Tensor, request: Request) -> list[bool]:
        return (output[: -(-len(_audio(request)) // PIECE)] > 0.5).tolist()

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        answers = predict(labeled(range(len(speech()))))
        truth = [_spoken(_between_pauses(k)) for k in range(len(speech()))]
        return float((np.concatenate(answers) == np.concatenate(truth)).mean())


def _audio(request: Request) -> Audio:
    voice = case_of(request)
    if voice is None:
        return talk(request, float(request.features["seconds"]))
    clean = _between_pauses(voice)
    noise = np.random.default_rng(voice).standard_normal(len(clean), dtype=np.float32)
    return clean + noise * np.float32(0.18 * clean.std())


def _between_pauses(voice: int) -> Audio:
    pause = np.zeros(RATE, np.float32)
    return np.concatenate([part for clip in speech()[voice][:3] for part in (pause, clip)])


def _spoken(clean: Audio) -> Any:
    pieces = np.pad(clean, (0, -len(clean) % PIECE)).reshape(-1, PIECE)
    power = (pieces**2).mean(1)
    return power > power.max() / 1000
