"""Quality of speech (DNSMOS, ONNX): nine seconds of a recording in, its predicted rating out.

Score: rank correlation of the rating with the signal-to-noise ratio.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import PACKAGES, OnnxModule, case_of, labeled, number, speech, talk

SAMPLES = 144_160
DECIBELS = np.linspace(-5, 35, 16)


class SpeechQuality(Workload):
    """Adapter. All requests have the same size."""

    def load(self, device: str) -> torch.nn.Module:
        del device
        return OnnxModule(PACKAGES / "speechmos" / "dnsmos_models" / "sig_bak_ovr.onnx")

    def prepare(self, request: Request) -> torch.Tensor:
        case = case_of(request)
        if case is None:
            audio, decibels = talk(request, SAMPLES / 16_000), number(request) % 40
        else:
            audio, decibels = np.resize(np.concatenate(speech()[case]), SAMPLES), DECIBELS[case]
        noise = np.random.default_rng(number(request)).standard_normal(SAMPLES, dtype=np.float32)
        return torch.from_numpy(audio + noise * np.float32(audio.std() * 10 ** (-decibels / 20)))

    def finish(self, output: torch.Tensor, request: Request) -> float:
        """The overall rating, from 1 to 5, by the polynomial that the authors fitted."""
        del request
        return float(np.polyval([-0.06766283, 1.11546468, 0.04602535], float(output[2])))

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        return float(spearmanr(predict(labeled(range(len(DECIBELS)))), DECIBELS).statistic)
