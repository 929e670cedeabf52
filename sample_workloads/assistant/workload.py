"""Adapter of the sample assistant: a chat model that generates answers token by token."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file

from latfix import Request, Workload

HERE = Path(__file__).resolve().parent


def _neighbor(name: str) -> ModuleType:
    """Load ``name.py`` from this folder under a unique module name."""
    full_name = f"_latfix_assistant_{zlib.crc32(str(HERE).encode()):08x}_{name}"
    if full_name in sys.modules:
        return sys.modules[full_name]
    spec = importlib.util.spec_from_file_location(full_name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {HERE / name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = module  # dataclasses look up their module here while it is executed
    spec.loader.exec_module(module)
    return module


language = _neighbor("language")
network = _neighbor("network")
stepping = _neighbor("stepping")

DEFAULT_PROMPT = 64
DEFAULT_NEW = 16


class SteppedAssistant(stepping.Stepping, network.Assistant):  # type: ignore[misc, name-defined]
    """The network, which can also be served in steps."""

    prompt_step = network.PROMPT_STEP
    cache_step = network.CACHE_STEP


class AssistantWorkload(Workload):
    """Chat requests: features ``input_tokens`` and ``output_tokens``, both optional.

    A prompt is ``payload["tokens"]`` if given. Otherwise it is ``input_tokens`` tokens of a text derived from
    ``payload["seed"]``, else from the session, else from the request's id: any trace of lengths can be
    replayed, and a session's prompts grow as one conversation.
    """

    def load(self, device: str) -> torch.nn.Module:
        """The network with its trained weights (kept as float16, used as float32)."""
        model = SteppedAssistant()
        weights = load_file(HERE / "model.safetensors", device="cpu")
        model.decoder.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        loaded: torch.nn.Module = model.to(device).eval()
        return loaded.requires_grad_(False)

    def prepare(self, request: Request) -> dict[str, torch.Tensor]:
        """Tokens of the prompt, its length and the number of tokens to generate.

        Lengths are rounded; a prompt longer than the context keeps its last tokens.

        :raises ValueError: a length is negative or not a number, or a token is outside the vocabulary.
        """
        new_tokens = min(_count(request, "output_tokens", DEFAULT_NEW), network.MAX_NEW)
        prompt = _prompt(request)
        return {
            "tokens": torch.tensor(prompt, dtype=torch.long),
            "prompt_lengths": torch.tensor(len(prompt)),
            "new_tokens": torch.tensor(new_tokens),
        }

    def finish(self, output: Mapping[str, torch.Tensor], request: Request) -> dict[str, Any]:
        """The answer as token ids and as text."""
        new_tokens = min(_count(request, "output_tokens", DEFAULT_NEW), network.MAX_NEW)
        ids = output["tokens"][:new_tokens].tolist()
        return {"tokens": ids, "text": " ".join(map(language.spell, ids))}

    def evaluate(self, predict: Any) -> float:
        """Next-token accuracy on labeled texts, from 0 to 1.

        Each text is continued by a few tokens. A generated token counts, right or wrong, if all before it
        were right, because only then has the model read the true text. So both prompt reading and decoding
        steps are measured.
        """
        cases = validation()
        requests = [
            Request(
                id=f"validation-{i}",
                arrival_s=0.0,
                features={"input_tokens": len(case["tokens"]), "output_tokens": len(case["next"])},
                payload={"tokens": case["tokens"]},
            )
            for i, case in enumerate(cases)
        ]
        right = counted = 0
        for case, answer in zip(cases, predict(requests), strict=True):
            for generated, true in zip(answer["tokens"], case["next"], strict=True):
                counted += 1
                if generated != true:
                    break
                right += 1
        return right / counted


def validation() -> list[dict[str, list[int]]]:
    """The labeled texts: ``tokens`` read so far, and the true ``next`` ones."""
    lines = (HERE / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _count(request: Request, feature: str, default: int) -> int:
    """A length from the request's features, rounded to whole tokens."""
    value = request.features.get(feature, default)
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"request {request.id}: {feature} must be a number, found {value!r}") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"request {request.id}: {feature} must be 0 or more, found {value!r}")
    return round(number)


def _prompt(request: Request) -> list[int]:
    """The prompt's tokens: at least one, at most as many as the context holds."""
    payload = request.payload if isinstance(request.payload, Mapping) else {}
    given = payload.get("tokens")
    if given is None:
        length = min(max(_count(request, "input_tokens", DEFAULT_PROMPT), 1), network.MAX_PROMPT)
        seed = payload.get("seed", request.session or request.id)
        prompt: list[int] = language.tokens(str(seed), length)
        return prompt
    if not isinstance(given, list) or not given:
        raise ValueError(f"request {request.id}: payload.tokens must be a list of token ids, found {given!r:.60}")
    for token in given:
        if not isinstance(token, int) or not 0 <= token < language.VOCABULARY:
            raise ValueError(
                f"request {request.id}: payload.tokens must be ids from 0 to {language.VOCABULARY - 1}, "
                f"found {token!r}"
            )
    return given[-network.MAX_PROMPT :]
