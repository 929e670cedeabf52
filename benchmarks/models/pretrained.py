"""Shared by the workloads of this folder: the packages' location, and generated or local inputs."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from latfix import Request

#: Where ``install.py`` stores packages and speech.
CACHE = Path(os.environ.get("LATFIX_MODELS", "~/.cache/latfix-models")).expanduser()
PACKAGES = CACHE / "packages"
#: Samples a second of all audio here.
RATE = 16_000
if str(PACKAGES) not in sys.path:
    sys.path.append(str(PACKAGES))  # last: packages of latfix's environment come first

Audio = npt.NDArray[np.float32]


def number(request: Request) -> int:
    """A number below 2³² that is the same for a request in every replay."""
    return zlib.crc32(request.id.encode())


def labeled(cases: Iterable[Any], **features: float) -> list[Request]:
    """Requests for labeled cases; :func:`case_of` returns each case."""
    return [
        Request(id=f"labeled{k}", arrival_s=0.0, features=features, payload={"case": case})
        for k, case in enumerate(cases)
    ]


def case_of(request: Request) -> Any:
    """The labeled case of a request; ``None`` for recorded traffic."""
    return request.payload.get("case") if isinstance(request.payload, dict) else None


@cache
def manual() -> dict[str, list[str]]:
    """Paragraphs of Python's manual by topic, words only: real English, the same on every machine."""
    from pydoc_data.topics import topics

    return {
        topic: [" ".join(part.split()) for part in text.split("\n\n") if len(part.split()) >= 12]
        for topic, text in sorted(topics.items())
    }


@cache
def words() -> list[str]:
    """Every word of the manual in order."""
    return " ".join(part for parts in manual().values() for part in parts).split()


def passage(request: Request, count: int) -> str:
    """This many words of the manual, from a fixed place for each request."""
    start = number(request) % (len(words()) - count)
    return " ".join(words()[start : start + count])


@cache
def speech() -> list[list[Audio]]:
    """Utterances of each of several synthesized voices."""
    with np.load(CACHE / "speech.npz") as file:
        clips = np.split(file["samples"].astype(np.float32) / 32768, file["ends"][:-1])
        voice = file["voice"]
    return [[clip for clip, of in zip(clips, voice, strict=True) if of == one] for one in range(int(voice.max()) + 1)]


@cache
def _running() -> list[Audio]:
    return [np.concatenate(clips) for clips in speech()]


def talk(request: Request, seconds: float) -> Audio:
    """Speech of one voice of this length, from a fixed place for each request."""
    voices = _running()
    voice = voices[number(request) % len(voices)]
    length = round(seconds * RATE)
    start = number(request) // len(voices) % (len(voice) - length)
    return voice[start : start + length]


class OnnxModule(torch.nn.Module):
    """An ONNX file as a callable module, as in a Python service; one input, one output."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session: Any = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._input = self.session.get_inputs()[0].name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.session.run(None, {self._input: x.numpy()})[0])
