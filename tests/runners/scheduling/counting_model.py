"""A model that works in steps: it sums each request's number over its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from latfix.adapter_api import Workload
from latfix.request import Request


class Stepping(Workload):
    """Each request's tensor is its number and its number of steps, by default five."""

    def prepare(self, request: Request) -> torch.Tensor:
        return torch.tensor([float(request.id), float(request.features.get("steps", 5))])

    def finish(self, output: Any, request: Request) -> float:
        del request
        return float(output)


@dataclass
class Row:
    """A request in service."""

    number: float
    left: int
    total: float = 0.0


class Counter(torch.nn.Module):
    """Adds a request's number to its sum once per step; ``forward`` does all steps at once.

    :ivar together: the numbers of each step's requests.
    :ivar gate: called in each step.
    :ivar fails: called first in each method, with its name and the requests' numbers.
    """

    def __init__(self, ms: float = 0.0) -> None:
        super().__init__()
        self.ms = ms
        self.together: list[list[float]] = []
        self.gate: Callable[[Sequence[float]], None] = lambda _: None
        self.fails: Callable[[str, Sequence[float]], None] = lambda _where, _numbers: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.fails("forward", x[:, 0].tolist())
        return x[:, :1] * x[:, 1:]

    def start(self, x: torch.Tensor) -> list[Row]:
        self.fails("start", x[:, 0].tolist())
        return [Row(number, int(left)) for number, left in x.tolist()]

    def done(self, state: list[Row]) -> list[bool]:
        self._enter("done", state)
        return [row.left <= 0 for row in state]

    def step(self, state: list[Row]) -> None:
        self.together.append(self._enter("step", state))
        self.gate(self.together[-1])
        time.sleep(self.ms / 1000)
        for row in state:
            row.total, row.left = row.total + row.number, row.left - 1

    def join(self, state: list[Row], other: list[Row]) -> list[Row]:
        self._enter("join", state + other)
        return state + other

    def leave(self, state: list[Row], rows: Sequence[int]) -> tuple[list[torch.Tensor], list[Row] | None]:
        self._enter("leave", state)
        stay = [row for k, row in enumerate(state) if k not in set(rows)]
        return [torch.tensor([state[k].total]) for k in rows], stay or None

    def _enter(self, where: str, state: list[Row]) -> list[float]:
        numbers = [row.number for row in state]
        self.fails(where, numbers)
        return numbers
