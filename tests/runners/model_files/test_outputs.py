"""Files whose outputs are as long as their padded inputs, and how `[outputs]` cuts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.config.workload_toml import read_spec
from latfix.errors import InputError
from latfix.request import Request
from latfix.results.answer_check import AnswerCheck
from latfix.runners.measure.accuracy import evaluate
from latfix.runners.measure.accuracy_guard import judge
from latfix.runners.model_files.file_workload import FileWorkload
from latfix.runners.service.adapter_file import load_adapter
from latfix.runners.service.loaded_service import Service
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload
from tests.runners.engine.served import loaded_service
from tests.runners.model_files.conftest import traced

_CLASSES = 6
Write = Callable[..., Path]


class Reader(torch.nn.Module):
    """Class scores for a step of every four columns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.columns = torch.nn.Conv1d(8, 12, 4, stride=4)
        self.classes = torch.nn.Conv1d(12, _CLASSES, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        steps = torch.relu(self.columns(image.transpose(1, 2)))
        scores: torch.Tensor = 4.0 * self.classes(steps).transpose(1, 2)
        return scores


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a TorchScript file of a reader with its ``workload.toml``."""

    def make(outputs: str = "") -> Path:
        folder = tmp_path / f"reader-{len(outputs)}"
        folder.mkdir()
        traced(Reader().eval(), torch.zeros(2, 40, 8), folder / "model.pt")
        (folder / "traffic.jsonl").write_text('{"arrival_s": 0.0, "width": 40}\n')
        (folder / "workload.toml").write_text(
            '[workload]\nname = "reader"\nmodel = "model.pt"\ntraffic = "traffic.jsonl"\n'
            f'[inputs]\nimage = {{ shape = ["batch", "width", 8], dtype = "float32" }}\n{outputs}'
        )
        return folder

    return make


def _traffic(n: int = 80) -> Traffic:
    widths = np.random.default_rng(1).integers(4, 25, n) * 4 + np.arange(n) % 4
    return Traffic.plain(np.arange(n) * 1_000_000, features={"width": widths})


def _service(folder: Path, size: int = 8) -> Service:
    return loaded_service(folder, "model.pt", max_batch_size=size)


_SHAPE = '[outputs]\noutput = { shape = ["batch", "width / 4", 6] }\n'


def test_a_service_returns_the_requests_own_part_where_the_shape_is_declared(write: Write) -> None:
    requests = [_traffic().request(k) for k in range(24)]
    own = [int(request.features["width"]) // 4 for request in requests]
    for outputs, cut in (("", False), (_SHAPE, True)):
        service = _service(write(outputs))
        outcomes = service.predict(requests)
        assert all(outcome.status == Status.OK for outcome in outcomes), outcomes[0].error
        found = [len(outcome.output) for outcome in outcomes]
        assert (found == own) is cut and all(size >= least for size, least in zip(found, own, strict=True))
        assert [len(one.output) for one in service.predict(requests, settings={"max_batch_size": 1})] == own


def test_payloads_give_the_length_as_well(write: Write) -> None:
    adapter = load_adapter(write(_SHAPE), "model.pt")
    request = Traffic.plain(np.zeros(1, np.int64), payloads=[{"image": [[0.0] * 8] * 17}]).request(0)
    assert isinstance(adapter, FileWorkload) and adapter.prepare(request).shape == (17, 8)
    assert adapter.finish(torch.zeros(9, _CLASSES), request).shape == (4, _CLASSES)


@pytest.mark.parametrize("outputs", ["", _SHAPE])
def test_a_file_that_is_right_loses_nothing_by_other_batches(write: Write, tmp_path: Path, outputs: str) -> None:
    folder = write(outputs)
    original = evaluate(_service(folder), _traffic(), None, save=tmp_path / "r.npz")
    check = AnswerCheck.from_json(original.answers)
    assert (original.score, original.kind) == (1.0, "agreement: steps")
    assert (check.compared, check.differing, check.padded) == (80, 0, True)
    assert [output.follows for output in check.outputs] == [(0,)]
    for size in (1, 16):
        found = evaluate(_service(folder, size), _traffic(), tmp_path / "r.npz", max_drop=0.01)
        assert found.agreement == 1.0 and found.same and judge(asdict(found), original.score, 0.01)[0]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ('[outputs]\nkind = "classes"\n', "found kind of kind 'classes'; expected one of scores, steps, vectors"),
        ("[outputs]\ny = 3\n", "found y = 3; expected a table like"),
        ("[outputs]\ny = { size = 3 }\n", "size"),
        ('[outputs]\ny = { shape = ["batch", "batch"] }\n', 'found y with "batch" twice'),
    ],
)
def test_an_error_in_outputs_is_one_line(write: Write, outputs: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_spec(write(outputs))
    assert (
        message in raised.value.message
        and "workload.toml:" in raised.value.message
        and "\n" not in raised.value.message
    )


class Recurrent(torch.nn.Module):
    """Returns steps first, as recurrent networks do, and the last step's state with the batch first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.classes = torch.nn.Linear(8, _CLASSES)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = self.classes(image).cumsum(1).transpose(0, 1)
        return steps, steps[-1]


def test_outputs_with_the_steps_first_are_split_along_the_batch(write: Write) -> None:
    """Even if batch size and number of steps are equal: only the declaration distinguishes them."""
    shapes = '0 = { shape = ["width", "batch", 6] }\n1 = { shape = ["batch", 6] }\n'
    folder = write(f"[outputs]\n{shapes}")
    model = Recurrent().eval()
    traced(model, torch.zeros(2, 40, 8), folder / "model.pt")
    adapter: Any = load_adapter(folder, "model.pt")
    requests = [Request(id=str(k), arrival_s=0.0, features={"width": width}) for k, width in enumerate((4, 3, 2, 1))]
    with torch.no_grad():
        inputs = [adapter.prepare(request) for request in requests]
        batch = adapter.load("cpu")(adapter.collate(inputs))
        for k, (request, own) in enumerate(zip(requests, inputs, strict=True)):
            steps, _ = adapter.finish(tuple(each[k] for each in batch), request)
            torch.testing.assert_close(steps, model(own[None])[0][:, 0])


def test_a_shape_must_have_the_batch_and_read_what_there_is(write: Write) -> None:
    with pytest.raises(InputError, match='found output without "batch"'):
        load_adapter(write('[outputs]\noutput = { shape = ["width / 4", 6] }\n'), "model.pt")
    adapter: Any = load_adapter(write('[outputs]\noutput = { shape = ["batch", "height", 6] }\n'), "model.pt")
    with pytest.raises(InputError, match="neither a numeric feature nor a variable dimension is called 'height'"):
        adapter.check_traffic(_traffic())


def test_an_adapter_cuts_its_own_outputs(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w")
    spec = folder / "workload.toml"
    spec.write_text(f"{spec.read_text()}{_SHAPE}")
    with pytest.raises(InputError, match="found output with a shape and no model"):
        read_spec(folder)
    spec.write_text(spec.read_text().replace(_SHAPE, '[outputs]\nkind = "vectors"\n'))
    read_spec(folder)
