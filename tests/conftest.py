"""Shared by all tests: workloads written to a temporary folder, and the command line called in this process."""

from __future__ import annotations

import contextlib
import io
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

WriteWorkload = Callable[..., Path]
Cli = Callable[..., tuple[int, str, str]]

PLAIN_ADAPTER = """
import torch
from latfix import Request, Workload

class Plain(Workload):
    def load(self, device):
        return torch.nn.Identity()

    def prepare(self, request):
        return torch.full((2,), float(request.features.get("value", 0)))
"""


@pytest.fixture(scope="session")
def write_workload() -> WriteWorkload:
    """Writes a workload's folder: adapter source, traffic rows and the keys of ``[runner]``."""

    def write(
        folder: Path,
        *,
        adapter: str = PLAIN_ADAPTER,
        traffic: Sequence[Mapping[str, Any]] | None = None,
        runner: Mapping[str, Any] | None = None,
    ) -> Path:
        folder.mkdir(parents=True)
        source = textwrap.dedent(adapter).strip() + "\n"
        kind = source.rpartition("\nclass ")[2].partition("(")[0].partition(":")[0]
        settings = {"device": "cpu", "intra_op_threads": 1, **(runner or {})}
        lines = ["[workload]", 'name = "w"', f'entry = "adapter:{kind}"', 'traffic = "traffic.jsonl"', "[runner]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        (folder / "workload.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "adapter.py").write_text(source, encoding="utf-8")
        rows = [{"arrival_s": k * 0.01} for k in range(20)] if traffic is None else traffic
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "traffic.jsonl").write_text(text, encoding="utf-8")
        return folder

    return write


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Calls the command line in this process: exit code, standard output, standard error."""
    from latfix.cli.app import main

    def call(*arguments: object) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
        return code, out.getvalue(), err.getvalue()

    return call
