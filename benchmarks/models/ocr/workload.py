"""Text recognition (PP-OCRv4, ONNX): an image of one line of text in, the text out.

Score: share of rendered lines that are read without an error; blanks do not count.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import PACKAGES, OnnxModule, case_of, labeled, number, words

HEIGHT = 48
SHORTEST, LONGEST, LINES_EACH = 4, 60, 3


class Recognizer(OnnxModule):
    """Images have their width first, so that batches are padded there: (batch, width, 3, 48)."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.permute(0, 2, 3, 1).contiguous())


class Ocr(Workload):
    """Adapter. Feature ``characters``: length of the line."""

    def load(self, device: str) -> torch.nn.Module:
        del device
        model = Recognizer(PACKAGES / "rapidocr_onnxruntime" / "models" / "ch_PP-OCRv4_rec_infer.onnx")
        listed = model.session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self._characters = ["", *listed, " "]
        self._lines = [(text, rendered(text)) for text in _texts()]
        return model

    def prepare(self, request: Request) -> torch.Tensor:
        from PIL import Image

        image = Image.open(io.BytesIO(self._lines[_line(request)][1])).convert("RGB")
        image = image.resize((max(HEIGHT, image.width * HEIGHT // image.height), HEIGHT))
        pixels = np.asarray(image, np.float32).transpose(1, 2, 0)
        return torch.from_numpy(pixels / 127.5 - 1)

    def finish(self, output: torch.Tensor, request: Request) -> str:
        """The likeliest character of each column, without repeats and blanks."""
        del request
        best = output.argmax(1).tolist()
        return "".join(self._characters[now] for now, before in zip(best, [0, *best], strict=False) if now != before)

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        answers = predict(labeled(range(len(self._lines))))
        right = [a.replace(" ", "") == t.replace(" ", "") for a, (t, _) in zip(answers, self._lines, strict=True)]
        return sum(right) / len(right)


def _texts() -> list[str]:
    """Lines of every length, ``LINES_EACH`` of each."""
    text = " ".join(word for word in words() if word.isascii() and word.isalnum())
    lengths = [length for length in range(SHORTEST, LONGEST + 1) for _ in range(LINES_EACH)]
    starts = np.cumsum([0, *lengths[:-1]]) * 7
    return [text[at : at + length].strip() for at, length in zip(starts.tolist(), lengths, strict=True)]


def _line(request: Request) -> int:
    if (case := case_of(request)) is not None:
        return int(case)
    length = min(max(int(request.features["characters"]), SHORTEST), LONGEST)
    return (length - SHORTEST) * LINES_EACH + number(request) % LINES_EACH


def rendered(text: str) -> bytes:
    """A PNG of the text, black on white, in matplotlib's font."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), 28)
    image = Image.new("RGB", (int(font.getlength(text)) + 16, 44), "white")
    ImageDraw.Draw(image).text((8, 4), text, "black", font)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
