"""A small language model (SmolLM2, 135 million weights) that continues texts token by token.

A batch is static: prompts are padded on the left, and every row continues until the longest answer is complete.
Score: share of passages of Python's manual whose next token it predicts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from latfix import Request, Workload

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pretrained import CACHE, case_of, labeled, passage, words

FOLDER = CACHE / "smollm2"
CASES, CONTEXT = 80, 40


class Continuation(torch.nn.Module):
    """Greedy answers: (batch, prompt) → (batch, longest answer)."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.network = AutoModelForCausalLM.from_pretrained(FOLDER)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
        cache, answer = None, []
        for _ in range(int(count.max())):
            step = self.network(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, input_ids = step.past_key_values, step.logits.argmax(2)
            answer.append(input_ids)
            attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], 1)
            positions = positions[:, -1:] + 1
        return torch.cat(answer, 1)


class Chat(Workload):
    """Adapter. Features ``prompt_tokens`` and ``answer_tokens``."""

    def load(self, device: str) -> torch.nn.Module:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
        return Continuation().eval().to(device)

    def prepare(self, request: Request) -> dict[str, torch.Tensor]:
        ids, count = case_of(request), 1
        if ids is None:
            length, count = int(request.features["prompt_tokens"]), int(request.features["answer_tokens"])
            ids = self._tokenizer.encode(passage(request, length)).ids[:length]
        prompt = torch.tensor(ids)
        return {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), "count": torch.tensor(count)}

    def collate(self, inputs: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Pad on the left, so that every row ends with the last token of its prompt."""
        longest = max(len(one["input_ids"]) for one in inputs)
        padded = {
            name: torch.stack(
                [torch.nn.functional.pad(one[name], (longest - len(one[name]), 0)) for one in inputs],
            )
            for name in ("input_ids", "attention_mask")
        }
        return padded | {"count": torch.stack([one["count"] for one in inputs])}

    def finish(self, output: torch.Tensor, request: Request) -> list[int]:
        return output[: int(request.features.get("answer_tokens", 1))].tolist()

    def evaluate(self, predict: Callable[[list[Request]], list[Any]]) -> float:
        ids = self._tokenizer.encode(" ".join(words()[: CASES * CONTEXT * 2])).ids
        cut = [ids[k * CONTEXT : (k + 1) * CONTEXT + 1] for k in range(CASES)]
        answers = predict(labeled(one[:-1] for one in cut))
        return sum(answer[0] == one[-1] for answer, one in zip(answers, cut, strict=True)) / CASES
