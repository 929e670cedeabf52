"""Small model files of every kind, and traffic for them."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.config.model_input_rules import InputRule, parse_inputs
from latfix.files.toml_reader import TomlFile
from latfix.request import Request
from latfix.runners.backend_comparison import candidates
from latfix.runners.backend_comparison import cold_load as loading
from latfix.runners.model_files.opened_model import Axis, OpenedModel, TensorInput
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.runners.engine.served import loaded_service

ROWS, WIDTH, CLASSES = 50, 8, 3
Save = Callable[..., Path]


def rules(text: str = "") -> dict[str, InputRule]:
    """``[inputs]`` with these lines."""
    text = f"[inputs]\n{text}\n"
    return parse_inputs(tomllib.loads(text)["inputs"], TomlFile(Path("workload.toml"), text))


class Encoder(torch.nn.Module):
    """Mean of embeddings over the real tokens, then scores: padding must not change them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(ROWS, WIDTH)
        self.score = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        weight = attention_mask.unsqueeze(-1).to(torch.float32)
        scores: torch.Tensor = self.score((self.embed(tokens) * weight).sum(1) / weight.sum(1).clamp(min=1.0))
        return scores


class Counted(torch.nn.Module):
    """A model with an input that is no tensor."""

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n


def scripted(module: torch.nn.Module, file: Path) -> Path:
    """Saves a module as TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), file)
    return file


def traced(module: torch.nn.Module, example: torch.Tensor, file: Path) -> Path:
    """Saves a module as TorchScript, traced on an example."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(module, example), file)  # type: ignore[no-untyped-call]
    return file


@pytest.fixture
def quick_loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the processes that measure loading; returns the backends whose loading was to be measured."""
    requested: list[str] = []

    def load(file: Path, backend: str, inputs: Sequence[str], threads: int) -> float:
        assert file.is_file() and threads >= 1, inputs
        requested.append(backend)
        return 0.5

    monkeypatch.setattr(candidates, "first_load_s", load)
    monkeypatch.setattr(loading, "first_load_s", load)
    return requested


@pytest.fixture(scope="session")
def encoder() -> torch.nn.Module:
    """The model that the files hold."""
    return Encoder().eval()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the files."""
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="session")
def save_exported(files: Path) -> Save:
    """Saves a module as an exported program."""

    def save(module: torch.nn.Module, args: Any, name: str = "model", **more: Any) -> Path:
        file = files / f"{name}.pt2"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(module, args, **more), file)
        return file

    return save


@pytest.fixture(scope="session")
def exported_file(encoder: torch.nn.Module, save_exported: Save) -> Path:
    """The encoder as ``.pt2`` with dynamic batch and length, the length up to 64."""
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=64)
    sizes = {0: batch, 1: length}
    # One tensor given twice would be exported as one input.
    tokens, mask = torch.ones(3, 5, dtype=torch.int64), torch.ones(3, 5, dtype=torch.int64)
    return save_exported(encoder, (tokens, mask), "encoder", dynamic_shapes=(sizes, sizes))


@pytest.fixture(scope="session")
def script_file(encoder: torch.nn.Module, files: Path) -> Path:
    """The encoder as TorchScript."""
    return scripted(encoder, files / "encoder.pt")


def request_of(name: str = "a", payload: Any = None, **features: float | str) -> Request:
    """Makes a request."""
    return Request(id=name, arrival_s=0.0, features=features, payload=payload)


def traffic_of(payloads: Sequence[Any] | None = None, **features: Sequence[Any]) -> Traffic:
    """Makes traffic with these features and payloads."""
    n = len(next(iter(features.values()), payloads or [None]))
    return Traffic.plain(
        np.arange(n) * 1_000_000,
        features={name: _column(values) for name, values in features.items()},
        payloads=list(payloads) if payloads is not None else [None] * n,
    )


def _column(values: Sequence[Any]) -> Any:
    plain = all(isinstance(value, int | float) for value in values)
    return np.array(values) if plain else np.array(values, dtype=object)


def opened(
    inputs: Mapping[str, Sequence[int | str | Axis] | None],
    *,
    dtype: str | None = "float32",
    run: Callable[..., Any] | None = None,
    rows: int | None = None,
) -> OpenedModel:
    """Makes a model as a backend would open it; each dimension is a number or a symbol."""

    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            assert run is not None
            return run(*tensors)

    return OpenedModel(
        file=Path("model.pt2"),
        backend="torch.export",
        inputs=tuple(
            TensorInput(
                name=name,
                dtype=dtype,
                axes=None if axes is None else tuple(_axis(axis) for axis in axes),
                rows=rows,
            )
            for name, axes in inputs.items()
        ),
        load=lambda _: Module(),
    )


def _axis(given: int | str | Axis) -> Axis:
    if isinstance(given, Axis):
        return given
    return Axis(size=given) if isinstance(given, int) else Axis(symbol=given)


def written(file: Path, nodes: Any, inputs: Any, outputs: Any, tables: Sequence[Any] = (), opset: int = 17) -> Path:
    """An ONNX file.

    :param nodes: for each, operator, inputs, outputs, and its attributes.
    :param inputs: type and shape by name; ``outputs`` likewise.
    """
    from onnx import helper

    given, answered = (
        [helper.make_tensor_value_info(name, *kind) for name, kind in each.items()] for each in (inputs, outputs)
    )
    graph = helper.make_graph([helper.make_node(*one, **more) for one, more in nodes], "g", given, answered, tables)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    file.write_bytes(model.SerializeToString())
    return file


def served(file: Path, requests: list[Request], **values: Any) -> list[Any]:
    """A service's answers from the file; none may fail."""
    outcomes = loaded_service(file.parent, file.name, **values).predict(requests)
    assert [outcome.status for outcome in outcomes] == [Status.OK] * len(requests), [o.error for o in outcomes]
    return [outcome.output for outcome in outcomes]
