"""Generation in steps: requests join and leave between two tokens, for ``batching = "continuous"``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: One layer's keys and values, each (rows, heads, places, width / heads).
KeysValues = tuple[Tensor, Tensor]


@dataclass(slots=True)
class Generating:
    """Texts being generated, one per row.

    All rows write their next token's keys and values at the same place of the cache. Places that a row never wrote,
    because it joined later or its prompt was shorter, are masked.

    :param mask: (rows, 1, 1, places) 0 at tokens of a row, minus infinity elsewhere.
    :param place: the place of the next token.
    :param prompts: (rows,) tokens in each prompt.
    :param wanted: by row, tokens to generate; ``made``: those generated so far.
    :param logits: (rows, vocabulary) after the last token of each; ``first`` after its prompt.
    """

    cache: list[KeysValues]
    mask: Tensor
    place: int
    prompts: Tensor
    wanted: list[int]
    made: list[list[int]]
    logits: Tensor
    first: Tensor


class Stepping:
    """Mixin that makes a model with ``prefill`` and ``decode_step`` run in steps.

    :cvar prompt_step: prompts are padded to a multiple of it, caches to one of ``cache_step``.
    """

    prompt_step: int
    cache_step: int
    prefill: Any
    decode_step: Any

    def start(self, tokens: Tensor, prompt_lengths: Tensor, new_tokens: Tensor) -> Generating:
        """Read prompts and generate the first token of each answer. Arguments are those of ``forward``."""
        padded = _round_up(tokens.shape[1], self.prompt_step)
        logits, cache = self.prefill(F.pad(tokens, (0, padded - tokens.shape[1])), prompt_lengths)
        empty = torch.arange(padded, device=tokens.device) >= prompt_lengths[:, None]
        mask = torch.zeros(empty.shape, dtype=cache[0][0].dtype, device=tokens.device)
        return Generating(
            cache=cache,
            mask=mask.masked_fill_(empty, float("-inf"))[:, None, None],
            place=padded,
            prompts=prompt_lengths,
            wanted=new_tokens.tolist(),
            made=[[token] for token in logits.argmax(dim=-1).tolist()],
            logits=logits,
            first=logits,
        )

    def done(self, state: Generating) -> list[bool]:
        """By row, true if all requested tokens are generated."""
        return [len(made) >= wanted for made, wanted in zip(state.made, state.wanted, strict=True)]

    def step(self, state: Generating) -> None:
        """One more token for each row."""
        if state.place >= state.mask.shape[-1]:
            self._make_room(state)
        device = state.mask.device
        state.mask[..., state.place] = 0.0
        last = torch.tensor([made[-1] for made in state.made], device=device)
        count = torch.tensor([len(made) - 1 for made in state.made], device=device)
        place = torch.tensor([state.place], device=device)
        state.logits = self.decode_step(last, state.prompts + count, place, state.mask, state.cache)
        state.place += 1
        for made, token in zip(state.made, state.logits.argmax(dim=-1).tolist(), strict=True):
            made.append(token)

    def join(self, state: Generating, other: Generating) -> Generating:
        """The texts of both, those of ``other`` last."""
        places = max(state.mask.shape[-1], other.mask.shape[-1])
        one, two = (_widened(part.cache, part.mask, places) for part in (state, other))
        return Generating(
            cache=[
                (torch.cat([keys, more_keys]), torch.cat([values, more_values]))
                for (keys, values), (more_keys, more_values) in zip(one[0], two[0], strict=True)
            ],
            mask=torch.cat([one[1], two[1]]),
            place=max(state.place, other.place),
            prompts=torch.cat([state.prompts, other.prompts]),
            wanted=state.wanted + other.wanted,
            made=state.made + other.made,
            logits=torch.cat([state.logits, other.logits]),
            first=torch.cat([state.first, other.first]),
        )

    def leave(self, state: Generating, rows: Sequence[int]) -> tuple[list[dict[str, Tensor]], Generating | None]:
        """Answers of some rows, as from ``forward``, and the remaining texts."""
        answers = [
            {
                "tokens": torch.tensor(state.made[row][: state.wanted[row]], dtype=torch.long),
                "first_logits": state.first[row],
                "last_logits": state.logits[row],
            }
            for row in rows
        ]
        going = set(rows)
        stay = [row for row in range(len(state.made)) if row not in going]
        if not stay:
            return answers, None
        kept = torch.tensor(stay, device=state.mask.device)
        return answers, Generating(
            cache=[(keys[kept], values[kept]) for keys, values in state.cache],
            mask=state.mask[kept],
            place=state.place,
            prompts=state.prompts[kept],
            wanted=[state.wanted[row] for row in stay],
            made=[state.made[row] for row in stay],
            logits=state.logits[kept],
            first=state.first[kept],
        )

    def _make_room(self, state: Generating) -> None:
        """Widen the cache; if many places are masked, compact it first.

        The keys contain their positions, so tokens may be in any order.
        """
        empty = state.mask[:, 0, 0] < 0
        used = int((~empty).sum(dim=1).max())
        if used <= 0.75 * state.place:
            order = empty.to(torch.int8).argsort(dim=1, stable=True)[:, :used]
            index = order[:, None, :, None]
            state.cache = [
                tuple(x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3])) for x in layer)  # type: ignore[misc]
                for layer in state.cache
            ]
            state.mask = state.mask[:, 0, 0].gather(1, order)[:, None, None]
            state.place = used
        places = _round_up(state.place + 1, self.cache_step)
        state.cache, state.mask = _widened(state.cache, state.mask, places)


def _widened(cache: list[KeysValues], mask: Tensor, places: int) -> tuple[list[KeysValues], Tensor]:
    """Caches and mask with room for ``places`` tokens per row; new places are zero and masked."""
    more = places - mask.shape[-1]
    wide = [(F.pad(keys, (0, 0, 0, more)), F.pad(values, (0, 0, 0, more))) for keys, values in cache]
    return wide, F.pad(mask, (0, more), value=float("-inf"))


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step
