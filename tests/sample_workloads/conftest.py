"""The samples, loaded for their tests."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import latfix.sample_workloads
from latfix import Request, Workload

SAMPLES = Path(latfix.sample_workloads.__file__).resolve().parent


@dataclass(frozen=True)
class Sample:
    """A sample's folder, and parts of it that are loaded once.

    :param entry: its adapter's class.
    """

    name: str
    entry: str

    @property
    def folder(self) -> Path:
        return SAMPLES / self.name

    @functools.cache  # noqa: B019 - three samples, for the whole session
    def module(self, file: str = "workload") -> ModuleType:
        """A Python file of it."""
        key = f"sample_{self.name}_{file}"
        spec = importlib.util.spec_from_file_location(key, self.folder / f"{file}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
        return module

    def adapter(self) -> Workload:
        """A new adapter."""
        made: Workload = getattr(self.module(), self.entry)()
        made.folder = self.folder
        return made

    @functools.cache  # noqa: B019
    def loaded(self) -> tuple[Any, Any]:
        """An adapter and its model."""
        adapter = self.adapter()
        return adapter, adapter.load("cpu")

    @functools.cache  # noqa: B019
    def records(self) -> list[dict[str, Any]]:
        """Its traffic."""
        return [json.loads(line) for line in (self.folder / "traffic.jsonl").read_text().splitlines()]

    def request(self, record: dict[str, Any]) -> Request:
        """A record of the traffic, as a request."""
        features = {key: record[key] for key in record if key not in ("id", "arrival_s", "payload", "priority")}
        return Request(
            id=record["id"], arrival_s=record["arrival_s"], features=features, payload=record.get("payload")
        )


RECOMMENDER = Sample("recommender", "Ranker")
VISION = Sample("vision", "Inspector")
ASSISTANT = Sample("assistant", "AssistantWorkload")


def batch_output(workload: Any, model: Any, requests: Sequence[Request]) -> Any:
    """The model's output for one batch of requests."""
    with torch.inference_mode():
        return model(**workload.collate([workload.prepare(request) for request in requests]))


def answers(workload: Any, model: Any, requests: Sequence[Request]) -> list[torch.Tensor]:
    """Outputs of one request at a time."""
    return [batch_output(workload, model, [request])[0] for request in requests]


def predictor(workload: Any, model: Any) -> Callable[[list[Request]], list[Any]]:
    """The ``predict`` argument of ``evaluate``."""

    def predict(requests: list[Request]) -> list[Any]:
        outputs = zip(answers(workload, model, requests), requests, strict=True)
        return [workload.finish(output, request) for output, request in outputs]

    return predict


@pytest.fixture(scope="session")
def workload() -> Any:
    """The assistant's adapter."""
    return ASSISTANT.loaded()[0]


@pytest.fixture(scope="session")
def model() -> Any:
    """The assistant's model."""
    return ASSISTANT.loaded()[1]
