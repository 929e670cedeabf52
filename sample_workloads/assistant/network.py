"""The sample assistant's network: a decoder-only transformer that generates inside its ``forward``."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 160
LAYERS, WIDTH, HEADS, MLP_WIDTH = 8, 160, 5, 480
MAX_PROMPT = 256
MAX_NEW = 64
#: Prompts are padded to a multiple of the first, caches of the second, so that few shapes occur.
PROMPT_STEP, CACHE_STEP = 32, 64

#: One layer's keys and values, each (batch, heads, places, width / heads).
KeysValues = tuple[Tensor, Tensor]


def round_up(n: int, step: int) -> int:
    return -(-n // step) * step


class Block(nn.Module):
    """Attention with rotary positions, then a feed-forward layer, both added to their input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, MLP_WIDTH)
        self.down = nn.Linear(MLP_WIDTH, WIDTH)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of ``x`` (batch, time, width), rotated by their positions."""
        batch, time, _ = x.shape
        heads = self.qkv(self.norm_attention(x)).view(batch, time, 3 * HEADS, WIDTH // HEADS).transpose(1, 2)
        turned, v = heads[:, : 2 * HEADS], heads[:, 2 * HEADS :]
        turned = turned * cos + torch.roll(turned, WIDTH // HEADS // 2, dims=-1) * sin
        return turned[:, :HEADS], turned[:, HEADS:], v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """``x`` with the attention's result and the feed-forward layer added."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + cast(Tensor, self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh")))


class Decoder(nn.Module):
    """The weights, shared by :class:`Prefill` and :class:`DecodeStep`."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        half = WIDTH // HEADS // 2
        angle = torch.outer(
            torch.arange(MAX_PROMPT + MAX_NEW, dtype=torch.float32),
            10_000.0 ** -(torch.arange(half, dtype=torch.float32) / half),
        )
        self.register_buffer("cos", torch.cat([angle.cos(), angle.cos()], dim=1), persistent=False)
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], dim=1), persistent=False)

    def hidden(self, tokens: Tensor) -> tuple[Tensor, list[KeysValues]]:
        """Hidden states of whole texts (batch, time) read from their start, and each layer's keys and values."""
        time = tokens.shape[1]
        x = self.embed(tokens)
        cos, sin = self.cos[:time], self.sin[:time]
        cache = []
        for module in self.blocks:
            block = cast(Block, module)
            q, k, v = block.project(x, cos, sin)
            x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
            cache.append((k, v))
        return x, cache

    def logits(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.norm(x))).float()


class Prefill(nn.Module):
    """Reads the prompts at once.

    Prompts are padded on the right and each token attends only to its left, so padding has no effect.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor, prompt_lengths: Tensor) -> tuple[Tensor, list[KeysValues]]:
        """Logits (batch, vocabulary) after each prompt's last token, and each layer's keys and values."""
        x, cache = self.decoder.hidden(tokens)
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        return self.decoder.logits(x[rows, prompt_lengths - 1]), cache


class DecodeStep(nn.Module):
    """Reads one more token of each text, with earlier tokens in the cache."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, tokens: Tensor, positions: Tensor, place: Tensor, mask: Tensor, cache: list[KeysValues]
    ) -> Tensor:
        """Logits (batch, vocabulary); writes the new keys and values into ``cache``.

        :param tokens: (batch,) the last token of each text.
        :param positions: (batch,) its position in its own text.
        :param place: (1,) its place in the cache, the same for all rows.
        :param mask: (batch, 1, 1, places) 0 at tokens of a row, minus infinity elsewhere.
        """
        decoder = self.decoder
        x = decoder.embed(tokens)[:, None]
        cos, sin = decoder.cos[positions][:, None, None], decoder.sin[positions][:, None, None]
        for module, (keys, values) in zip(decoder.blocks, cache, strict=True):
            block = cast(Block, module)
            q, k, v = block.project(x, cos, sin)
            keys.index_copy_(2, place, k)
            values.index_copy_(2, place, v)
            x = block.finish(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
        return decoder.logits(x[:, 0])


class Assistant(nn.Module):
    """Greedy generation for a static batch: it runs until its longest answer is complete.

    There is no end token: the number of new tokens is the recorded one, so that a replay does the recorded
    work. The cache belongs to the call, so several threads may share one model.
    """

    def __init__(self) -> None:
        super().__init__()
        decoder = Decoder()
        self.prefill = Prefill(decoder)
        self.decode_step = DecodeStep(decoder)

    @property
    def decoder(self) -> Decoder:
        """The weights that both parts use."""
        return self.prefill.decoder

    def compile_parts(self) -> list[str]:
        """Names of the submodules worth compiling; the loop between them remains Python."""
        return ["prefill", "decode_step"]

    def forward(self, tokens: Tensor, prompt_lengths: Tensor, new_tokens: Tensor) -> dict[str, Tensor]:
        """Generate after each prompt.

        :param tokens: (batch, time) prompts, padded on the right.
        :param prompt_lengths: (batch,) tokens in each prompt, at least 1.
        :param new_tokens: (batch,) tokens to generate after each prompt, 0 to ``MAX_NEW``.
        :returns: ``tokens`` (batch, most new tokens), padded with 0; ``first_logits`` and ``last_logits``
            (batch, vocabulary), float32, of each row's first and last generated token.
        """
        steps = int(new_tokens.max())
        padded = round_up(tokens.shape[1], PROMPT_STEP)
        tokens = F.pad(tokens, (0, padded - tokens.shape[1]))
        logits, prompt_cache = self.prefill(tokens, prompt_lengths)
        history = [logits]
        generated = [logits.argmax(dim=-1)]
        if steps > 1:
            places = round_up(padded + steps - 1, CACHE_STEP)
            cache = self._widen(prompt_cache, places)
            mask = self._mask(prompt_lengths, places, cache[0][0].dtype)
            place = torch.arange(padded, padded + steps, device=tokens.device)
            for step in range(steps - 1):
                mask[..., padded + step] = 0.0
                logits = self.decode_step(generated[-1], prompt_lengths + step, place[step : step + 1], mask, cache)
                history.append(logits)
                generated.append(logits.argmax(dim=-1))
        return self._collect(history, generated, new_tokens, steps)

    @staticmethod
    def _widen(prompt_cache: list[KeysValues], places: int) -> list[KeysValues]:
        """Zeroed caches with room for ``places`` tokens per row."""

        def widen(x: Tensor) -> Tensor:
            wide = x.new_zeros((x.shape[0], x.shape[1], places, x.shape[3]))
            wide[:, :, : x.shape[2]] = x
            return wide

        return [(widen(keys), widen(values)) for keys, values in prompt_cache]

    @staticmethod
    def _mask(prompt_lengths: Tensor, places: int, dtype: torch.dtype) -> Tensor:
        """0 where a row's prompt has a token, minus infinity on padding and unwritten places."""
        empty = torch.arange(places, device=prompt_lengths.device) >= prompt_lengths[:, None]
        mask = torch.zeros(empty.shape, dtype=dtype, device=prompt_lengths.device)
        return mask.masked_fill_(empty, float("-inf"))[:, None, None]

    @staticmethod
    def _collect(history: list[Tensor], generated: list[Tensor], new_tokens: Tensor, steps: int) -> dict[str, Tensor]:
        rows = torch.arange(new_tokens.shape[0], device=new_tokens.device)
        ids = torch.stack(generated, dim=1)[:, :steps]
        beyond = torch.arange(steps, device=ids.device) >= new_tokens[:, None]
        last = torch.stack(history, dim=1)[rows, (new_tokens - 1).clamp_min(0)]
        return {"tokens": ids.masked_fill(beyond, 0), "first_logits": history[0], "last_logits": last}
