"""Model files are identified without running or unpickling anything in them."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.config.model_file_kind import KINDS, check_model_file, is_model_file, misnamed
from latfix.errors import InputError
from latfix.files.protobuf_wire import WireError, fields
from tests.conftest import Canary

#: ir_version 8, a graph of three bytes, an opset import.
ONNX = b"\x08\x08" + b"\x3a\x03\x0a\x01\x00" + b"\x42\x02\x10\x11"


def archive(file: Path, members: Mapping[str, bytes | str]) -> Path:
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file


def exported(file: Path, **more: bytes | str) -> Path:
    members = {"archive_format": "pt2", "models/model.json": "{}", "data/weights/model_weights_config.json": "{}"}
    return archive(file, {f"m/{name}": content for name, content in {**members, **more}.items()})


def script(file: Path) -> Path:
    return archive(file, {"m/data.pkl": b"", "m/constants.pkl": b"", "m/code/__torch__.py": ""})


def refusal(file: Path) -> str:
    with pytest.raises(InputError) as caught:
        check_model_file(file)
    message = str(caught.value)
    assert "\n" not in message and message.startswith((str(file), repr(str(file))))
    return message


def test_each_kind_is_known_by_its_content(tmp_path: Path) -> None:
    assert check_model_file(exported(tmp_path / "a.pt2")) == "torch.export"
    assert check_model_file(script(tmp_path / "a.pt")) == "TorchScript"
    assert check_model_file(script(tmp_path / "a.ts")) == "TorchScript"
    for name in ("a.onnx", "A.ONNX"):
        (tmp_path / name).write_bytes(ONNX)
        assert check_model_file(tmp_path / name) == "ONNX"
    (tmp_path / "a.engine").write_bytes(b"ftrt" + bytes(range(256)))
    assert check_model_file(tmp_path / "a.engine") == "TensorRT"
    older = archive(tmp_path / "older.pt2", {"version": "8.3", "serialized_exported_program.json": "{}"})
    assert check_model_file(older) == "torch.export"
    assert is_model_file("a/b.onnx") and is_model_file(Path("B.PT2"))
    assert not any(map(is_model_file, ("workload:Ranker", "model.pth", ".onnx")))


@pytest.mark.parametrize("suffix", [".pt2", ".pt", ".ts", ".onnx", ".engine"])
@pytest.mark.parametrize("kind", ["torch.export", "TorchScript", "ONNX"])
def test_a_wrong_suffix_suggests_the_right_one(tmp_path: Path, suffix: str, kind: str) -> None:
    file = tmp_path / f"model{suffix}"
    if kind == "torch.export":
        exported(file)
    elif kind == "TorchScript":
        script(file)
    else:
        file.write_bytes(ONNX)
    if KINDS[suffix] == kind:
        assert check_model_file(file) == kind
        return
    right = {"torch.export": ".pt2", "TorchScript": ".pt", "ONNX": ".onnx"}[kind]
    message = refusal(file)
    assert f"name it {right}" in message
    assert kind in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (b"hello, this is text\n", "no model file known here"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"  <!DOCTYPE html><html>", "a web page"),
        (b'{"a": 1}', "JSON text"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"GGUF\x03", "GGUF"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x80\x04\x95\x00", "a Python pickle, which can run any code"),
        (b"PK\x03\x04" + b"\0" * 40, "a damaged or truncated archive"),
        (struct.pack("<Q", 10) + b'{"a": {}  }' + b"\0" * 20, "safetensors"),
    ],
)
@pytest.mark.parametrize("suffix", [".pt2", ".pt", ".onnx"])
def test_other_content_than_a_model_is_identified(tmp_path: Path, content: bytes, says: str, suffix: str) -> None:
    file = tmp_path / f"model{suffix}"
    file.write_bytes(content)
    assert says in refusal(file)


def test_truncated_files(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(ONNX[:-1])
    assert "truncated ONNX" in refusal(tmp_path / "a.onnx")
    (tmp_path / "a.onnx").write_bytes(b"\x08\x08\x42\x02\x10\x11")
    assert "without a graph" in refusal(tmp_path / "a.onnx")
    whole = exported(tmp_path / "a.pt2").read_bytes()
    (tmp_path / "a.pt2").write_bytes(whole[: len(whole) // 2])
    assert "truncated archive" in refusal(tmp_path / "a.pt2")


def test_files_of_torch_save_are_identified_without_loading(tmp_path: Path, canary: Canary) -> None:
    file = archive(tmp_path / "a.pt", {"m/data.pkl": pickle.dumps(canary, protocol=2)})
    assert "a pickled object" in refusal(file)
    for protocol in (2, 4):
        archive(file, {"m/data.pkl": pickle.dumps({"a": Path}, protocol=protocol)})
        assert "pathlib" in refusal(file)
    archive(file, {"m/data.pkl": b"\x80\x02ccollections\nOrderedDict\n)R."})
    assert "weights without the model" in refusal(file)
    archive(file, {"m/data.pkl": b"no pickle"})
    assert "a damaged pickle" in refusal(file)


def test_pickled_objects_in_an_exported_program_are_refused(tmp_path: Path) -> None:
    entry = {"path_name": "weight_0", "use_pickle": True}
    config = json.dumps({"config": {"layer.weight": entry}})
    file = exported(tmp_path / "a.pt2", **{"data/weights/model_weights_config.json": config})
    assert "layer.weight" in refusal(file)
    entry["use_pickle"] = False
    exported(file, **{"data/weights/model_weights_config.json": json.dumps({"config": {"layer.weight": entry}})})
    assert check_model_file(file) == "torch.export"
    exported(file, **{"data/constants/opaque_obj_0": b"x"})
    assert "opaque_obj_0" in refusal(file)
    exported(file, **{"data/aotinductor/model/a.so": b"x"})
    assert "machine code" in refusal(file)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_under_any_compression(tmp_path: Path, method: int) -> None:
    file, name = tmp_path / "a.pt2", "m/data/weights/model_weights_config.json"
    with zipfile.ZipFile(file, "w", method) as made:
        for member in ("m/archive_format", "m/models/model.json", name):
            made.writestr(member, json.dumps({"a": list(range(200))}))
        at = made.getinfo(name).header_offset + 30 + len(name)
    damaged = bytearray(file.read_bytes())
    damaged[at + 10 : at + 80] = bytes(byte ^ 0x5A for byte in damaged[at + 10 : at + 80])
    file.write_bytes(damaged)
    assert "damaged" in refusal(file) or "cannot be read" in refusal(file)


def test_models_and_weights_under_another_suffix_are_known(tmp_path: Path) -> None:
    weights = archive(tmp_path / "w.pth", {"m/data.pkl": b"\x80\x02ccollections\nOrderedDict\n)R."})
    assert misnamed(weights).startswith("weights without the model (a state dict saved by torch.save); save it with")
    (tmp_path / "w.bin").write_bytes(ONNX)
    assert misnamed(tmp_path / "w.bin") == "an ONNX model; name it .onnx"
    for content in (b'{"arrival_s": 1}', b"some words", b""):
        (tmp_path / "w.jsonl").write_bytes(content)
        assert misnamed(tmp_path / "w.jsonl") == ""
    assert misnamed(archive(tmp_path / "a.zip", {"readme": b"text"})) == ""


def test_an_archive_without_a_model(tmp_path: Path) -> None:
    assert "no model of PyTorch" in refusal(archive(tmp_path / "a.pt", {"readme.txt": "x"}))
    assert "without a model" in refusal(archive(tmp_path / "a.pt2", {"m/archive_format": "pt2"}))
    assert "damaged" in refusal(exported(tmp_path / "b.pt2", **{"data/constants/model_constants_config.json": "{"}))


def test_directories_links_and_devices(tmp_path: Path) -> None:
    (tmp_path / "dir.onnx").mkdir()
    assert "a directory" in refusal(tmp_path / "dir.onnx")
    (tmp_path / "link.onnx").symlink_to(tmp_path / "gone")
    assert "a link to a file that is not there" in refusal(tmp_path / "link.onnx")
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    assert "cannot be read" in refusal(tmp_path / "loop.onnx")
    (tmp_path / "real").write_bytes(ONNX)
    (tmp_path / "good.onnx").symlink_to(tmp_path / "real")
    assert check_model_file(tmp_path / "good.onnx") == "ONNX"
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "no regular file" in refusal(tmp_path / "pipe.onnx")
    assert "no such file" in refusal(tmp_path / "nothing.onnx")
    assert "cannot be read" in refusal(Path("a\0b.onnx"))
    assert "cannot be read" in refusal(Path("a" * 5000 + ".onnx"))


ANY = settings(max_examples=150)


@ANY
@given(data=st.data())
def test_any_damage_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    suffix = data.draw(st.sampled_from([".pt2", ".pt", ".onnx"]))
    file = tmp_path / f"model{suffix}"
    if suffix == ".onnx":
        file.write_bytes(ONNX)
    else:
        (exported if suffix == ".pt2" else script)(file)
    source = file.read_bytes()
    start = data.draw(st.integers(0, len(source)))
    end = data.draw(st.integers(start, len(source)))
    file.write_bytes(source[:start] + data.draw(st.binary(max_size=8)) + source[end:])
    try:
        check_model_file(file)
    except InputError as error:
        assert "\n" not in error.message


@ANY
@given(content=st.binary(max_size=60))
def test_any_bytes_as_a_message(content: bytes) -> None:
    try:
        read = list(fields(memoryview(content)))
    except WireError:
        return
    assert all(field.number > 0 for field in read)


def test_fields_of_every_kind() -> None:
    message = b"\x08\x96\x01" + b"\x11" + b"\0" * 8 + b"\x1a\x02hi" + b"\x25" + b"\0" * 4
    read = [(field.number, field.value, bytes(field.data)) for field in fields(memoryview(message))]
    assert read == [(1, 150, b""), (2, 0, b""), (3, 0, b"hi"), (4, 0, b"")]
