"""Model files of each kind: read, served alone and in batches, and refused if they are wrong."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from latfix.errors import InputError, RunnerError
from latfix.request import Request
from latfix.runners.calls.model_call import call_model
from latfix.runners.model_files import open_model
from latfix.runners.model_files.opened_model import TensorInput
from latfix.runners.service.adapter_file import load_adapter
from latfix.runners.service.load import load_models
from latfix.settings import RunnerSettings
from tests.conftest import Canary
from tests.runners.model_files.conftest import Counted, Save, request_of, scripted, served


def settings(**values: Any) -> RunnerSettings:
    return RunnerSettings(device="cpu", intra_op_threads=1, **values)


def expected(encoder: torch.nn.Module, file: Path, requests: list[Request]) -> list[torch.Tensor]:
    adapter = load_adapter(file.parent, file.name)
    with torch.no_grad():
        return [encoder(*(tensor.unsqueeze(0) for tensor in adapter.prepare(request)))[0] for request in requests]


def close(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))


def test_inputs_of_an_exported_program(exported_file: Path) -> None:
    tokens, mask = open_model(exported_file).inputs
    assert (tokens.name, tokens.dtype, tokens.rows) == ("tokens", "int64", 50)
    assert (mask.name, mask.dtype, mask.rows) == ("attention_mask", "int64", None)
    assert tokens.axes == mask.axes and tokens.axes is not None
    batch, length = tokens.axes
    assert batch.size is None and length.size is None and batch.symbol != length.symbol
    assert (batch.most, length.least, length.most) == (None, 1, 64)


def test_an_exported_program_serves(encoder: torch.nn.Module, exported_file: Path) -> None:
    requests = [request_of(str(k), length=length) for k, length in enumerate((1, 7, 64, 30, 12))]
    wanted = expected(encoder, exported_file, requests)
    assert close(served(exported_file, requests), wanted)
    assert close(served(exported_file, requests, max_batch_size=4, buffer_pool=True), wanted)


def test_a_program_keeps_the_structure_of_its_call(save_exported: Save) -> None:
    class Nested(torch.nn.Module):
        def forward(self, pair: list[torch.Tensor], scale: int, *, bias: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": (pair[0] + pair[1]) * scale + bias}

    x, y, z = torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3)
    batch = torch.export.Dim("batch")
    sizes = {0: batch}
    shapes = {"pair": [sizes, sizes], "scale": None, "bias": sizes}
    file = save_exported(Nested(), ([x, y], 3), "nested", kwargs={"bias": z}, dynamic_shapes=shapes)
    adapter = load_adapter(file.parent, file.name)
    inputs = adapter.prepare(request_of())
    assert len(inputs) == 3
    output = call_model(adapter.load("cpu"), adapter.collate([inputs]))["out"]
    assert torch.allclose(output[0], (inputs[0] + inputs[1]) * 3 + inputs[2])


def test_a_program_with_a_fixed_batch(save_exported: Save) -> None:
    file = save_exported(torch.nn.Linear(4, 2), (torch.ones(1, 4),), "fixed")
    assert served(file, [request_of(str(k)) for k in range(3)])[2].shape == (2,)
    with pytest.raises(InputError, match=r"max_batch_size = 4, but the file's batch dimension is fixed at 1"):
        load_models(file.parent, file.name, settings(max_batch_size=4))


def test_a_program_stays_in_the_mode_that_it_was_saved_in(exported_file: Path) -> None:
    model = load_adapter(exported_file.parent, exported_file.name).load("cpu")
    assert model.eval() is model
    model.train()
    assert list(model.parameters())


def test_an_input_that_is_no_tensor_is_refused(save_exported: Save) -> None:
    size = torch.export.Dim.DYNAMIC
    file = save_exported(Counted(), (torch.ones(2), 3), "counted", dynamic_shapes=(None, size))
    with pytest.raises(InputError, match="input 'n', which is no tensor"):
        open_model(file)


def repacked(source: Path, target: Path, wrong: Callable[[str], bool], content: bytes) -> Path:
    """A copy of an archive in which some parts, chosen by name, have another content."""
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as copy:
        for name in whole.namelist():
            copy.writestr(name, content if wrong(name) else whole.read(name))
    return target


def test_pickles_of_more_than_tensors_are_refused_and_not_run(
    exported_file: Path, tmp_path: Path, canary: Canary
) -> None:
    evil = tmp_path / "evil"
    torch.save({"a": canary}, evil)
    file = repacked(exported_file, tmp_path / "model.pt2", lambda name: "/sample_inputs/" in name, evil.read_bytes())
    with pytest.raises(InputError, match="restores more than tensors"):
        open_model(file)


def test_an_archive_with_a_corrupt_part(exported_file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(exported_file) as source:
        name = next(name for name in source.namelist() if "/sample_inputs/" in name)
        at = source.getinfo(name).header_offset
    damaged = bytearray(exported_file.read_bytes())
    for k in range(at + 200, at + 500):
        damaged[k] ^= 0xFF
    (tmp_path / "model.pt2").write_bytes(damaged)
    with pytest.raises(InputError, match="a damaged or truncated archive"):
        open_model(tmp_path / "model.pt2")


@pytest.mark.parametrize(
    "replaced", ["models/model.json", "archive_version", "data/weights/model_weights_config.json"]
)
def test_a_program_with_a_damaged_part(exported_file: Path, tmp_path: Path, replaced: str) -> None:
    file = repacked(exported_file, tmp_path / "model.pt2", lambda name: name.endswith(replaced), b'{"a": 1}')
    with pytest.raises(InputError) as caught:
        open_model(file)
    assert "that does not load" in caught.value.message
    assert "\n" not in caught.value.message


def test_torchscript_states_names_only(script_file: Path) -> None:
    assert open_model(script_file).inputs == (
        TensorInput(name="tokens", dtype=None, axes=None),
        TensorInput(name="attention_mask", dtype=None, axes=None),
    )


def test_torchscript_serves_with_rules(encoder: torch.nn.Module, script_file: Path, tmp_path: Path) -> None:
    (tmp_path / "model.ts").write_bytes(script_file.read_bytes())
    line = '{ shape = ["batch", "length"], dtype = "int64", low = 1, high = 50 }'
    text = f'[workload]\nmodel = "model.ts"\ntraffic = "t"\n[inputs]\ntokens = {line}\n'
    mask = 'attention_mask = { shape = ["batch", "length"], dtype = "int64" }\n'
    (tmp_path / "workload.toml").write_text(text + mask)
    file = tmp_path / "model.ts"
    requests = [request_of(str(k), length=length) for k, length in enumerate((3, 9, 1))]
    assert close(served(file, requests, max_batch_size=4), expected(encoder, file, requests))


def test_torchscript_serves_what_the_payload_carries(encoder: torch.nn.Module, script_file: Path) -> None:
    payload = {"tokens": [4, 5, 6], "attention_mask": [1, 1, 0]}
    found = served(script_file, [request_of(payload=payload)])
    with torch.no_grad():
        wanted = encoder(torch.tensor([[4, 5, 6]]), torch.tensor([[1, 1, 0]]))
    assert close(found, [wanted[0]])


def test_torchscript_with_other_than_tensors(tmp_path: Path) -> None:
    class Defaulted(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int = 2) -> torch.Tensor:
            return x * n

    with pytest.raises(InputError, match="forward with n: int"):
        open_model(scripted(Counted(), tmp_path / "counted.pt"))
    assert [given.name for given in open_model(scripted(Defaulted(), tmp_path / "defaulted.pt")).inputs] == ["x"]


def test_an_error_of_torchscript_is_reduced_to_its_reason(tmp_path: Path) -> None:
    module = open_model(scripted(torch.nn.Linear(4, 2).eval(), tmp_path / "model.pt")).load("cpu")
    with pytest.raises(RuntimeError, match=r"^(addmm: )?mat1 and mat2 shapes cannot be multiplied"):
        module(torch.ones(1, 5))


def test_damaged_torchscript(script_file: Path, tmp_path: Path) -> None:
    file = repacked(script_file, tmp_path / "model.pt", lambda name: name.endswith(".py"), b"def nonsense(")
    with pytest.raises(InputError, match="a module that does not load") as caught:
        open_model(file)
    assert "\n" not in caught.value.message


def test_onnx_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x3a\x00")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RunnerError, match=r"not installed; pip install 'latfix\[onnx\]'"):
        open_model(tmp_path / "model.onnx")
