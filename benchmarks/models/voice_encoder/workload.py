"""A voice encoder (Resemblyzer: an LSTM of three layers) in a service that identifies speakers.

An utterance becomes mel spectrograms of 1.6 s, half overlapping; its vector is the mean of theirs. Score: each voice
is enrolled with the first half of its utterances; share of the others that are nearest to their own voice.
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

WINDOW, HOP, MELS = 400, 160, 40
FRAMES, STEP = 160, 77
TARGET_DBFS = -30.0


class VoiceNetwork(torch.nn.Module):
    """The published network, over several spectrograms per utterance.

    Inputs: ``mels`` (batch, parts, 160, 40), zero where padded; ``mask`` (batch, parts), one for each part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(MELS, 256, 3, batch_first=True)
        self.linear = torch.nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(mels.flatten(0, 1))
        of_part = torch.nn.functional.normalize(torch.relu(self.linear(hidden[-1])), dim=1)
        total = (of_part.unflatten(0, mask.shape) * mask[..., None].to(of_part.dtype)).sum(1)
        return torch.nn.functional.normalize(total, dim=1)


class VoiceEncoder(Workload):
    """Adapter. Feature ``seconds``: length of the utterance."""

    def load(self, device: str) -> torch.nn.Module:
        model = VoiceNetwork()
        weights = torch.load(PACKAGES / "resemblyzer" / "pretrained.pt", map_location="cpu", weights_only=True)
        model.load_state_dict({k: v for k, v in weights["model_state"].items() if k.startswith(("lstm", "linear"))})
        self._filters = mel_filters()
        return model.eval().to(device)

    def prepare(self, request: Request) -> dict[str, torch.Tensor]:
        case = case_of(request)
        audio = speech()[case[0]][case[1]] if case else talk(request, float(request.features["seconds"]))
        mels = self._mels(audio)
        parts = max(int(np.ceil((len(mels) - FRAMES) / STEP - 0.25)), 0) + 1
        mels = np.pad(mels, ((0, max((parts - 1) * STEP + FRAMES - len(mels), 0)), (0, 0)))
        cut = np.stack([mels[k * STEP : k * STEP + FRAMES] for k in range(parts)])
        return {"mels": torch.from_numpy(cut), "mask": torch.ones(parts)}

    def _mels(self, audio: Audio) -> Audio:
        """Like librosa's ``melspectrogram``, at the loudness that the network was trained on: (frames, mels)."""
        gain = 10 ** ((TARGET_DBFS - 10 * np.log10(np.mean(audio**2) + 1e-12)) / 20)
        spectrum = torch.stft(
            torch.from_numpy(audio * np.float32(max(gain, 1.0))),
            WINDOW,
            HOP,
            window=torch.hann_window(WINDOW),
            pad_mode="constant",
            return_complex=True,
        )
        return (self._filters @ (spectrum.abs() ** 2).numpy()).T.astype(np.float32)

    def finish(self, output: torch.Tensor, request: Request) -> list[float]:
        del request
        return [float(value) for value in output]

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        voices, each = len(speech()), len(speech()[0])
        utterances = [(voice, utterance) for voice in range(voices) for utterance in range(each)]
        vectors = torch.tensor(predict(labeled(utterances))).unflatten(0, (voices, each))
        enrolled = vectors[:, : each // 2].mean(1)
        nearest = (vectors[:, each // 2 :] @ enrolled.T).argmax(2)
        return float((nearest == torch.arange(voices)[:, None]).float().mean())


def mel_filters() -> Audio:
    """Slaney's triangular filters of equal area: (mels, bins)."""
    knee = np.log(6.4) / 27
    top = 15 + np.log(RATE / 2 / 1000) / knee
    mels = np.linspace(0, top, MELS + 2)
    points = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(knee * (mels - 15)))
    ramps = points[:, None] - np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    width = np.diff(points)[:, None]
    filters = np.maximum(0, np.minimum(-ramps[:-2] / width[:-1], ramps[2:] / width[1:]))
    return (filters * (2 / (points[2:] - points[:-2]))[:, None]).astype(np.float32)
