"""The kind of a model file, from its suffix and its bytes. Nothing in it is run or unpickled here."""

from __future__ import annotations

import io
import json
import lzma
import mmap
import pickletools
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from latfix.errors import InputError, input_error
from latfix.files.protobuf_wire import WireError, fields

Kind = Literal["torch.export", "TorchScript", "ONNX", "TensorRT"]

#: Suffixes of model files, and the kind of model that each must hold.
KINDS: dict[str, Kind] = {
    ".pt2": "torch.export",
    ".pt": "TorchScript",
    ".ts": "TorchScript",
    ".onnx": "ONNX",
    ".engine": "TensorRT",
}
MODEL_SUFFIXES: tuple[str, ...] = tuple(KINDS)

_EXPECTED: dict[Kind, str] = {
    "torch.export": "a program saved by torch.export.save",
    "TorchScript": "a TorchScript module saved by torch.jit.save",
    "ONNX": "an ONNX model",
    "TensorRT": "a TensorRT engine",
}
_NO_MODEL = "a zip archive that holds no model of PyTorch"
_NO_MODELS = (_NO_MODEL, "JSON text", "machine code")
_ADVICE = "save it with torch.export.save as .pt2, or load it in an adapter (latfix init DIR writes one)"
_RENAME: dict[Kind, str] = {"torch.export": ".pt2", "TorchScript": ".pt", "ONNX": ".onnx"}

#: First bytes of files that are often mistaken for a model file.
_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself", "fetch it with git lfs pull"),
    (b"<", "a web page or other markup", "download the file itself"),
    (b"{", "JSON text", _ADVICE),
    (b"\x89HDF", "an HDF5 file", _ADVICE),
    (b"GGUF", "GGUF weights", _ADVICE),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x7fELF", "machine code", _ADVICE),
)
#: Field numbers of ModelProto: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_ONNX_VERSION, _ONNX_GRAPH = 1, 7
_ONNX_FIELDS = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26))
#: Most bytes read from a member of an archive to identify it.
_MOST_BYTES = 64 << 20
#: Calls that unpickling tensors makes; a pickle without other calls holds weights.
_TENSOR_CALLS = (
    "torch._utils _rebuild",
    "torch ",
    "collections OrderedDict",
    "torch.storage ",
    "torch._tensor _rebuild",
)
#: Exceptions from reading a damaged archive, or the JSON in it.
DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class _Found:
    """The content of a file: a kind of model, or a description of anything else and what to do about it."""

    words: str
    kind: Kind | None = None
    todo: str = _ADVICE


def is_model_file(name: str | Path) -> bool:
    """True if the suffix is that of a model file."""
    return Path(name).suffix.lower() in KINDS


def check_model_file(path: Path) -> Kind:
    """The kind of model that a file holds.

    :raises InputError: it is missing, unreadable, empty, damaged, not what its suffix says, or holds objects
        that only unpickling could restore, which can run any code.
    """
    expected = KINDS[path.suffix.lower()]
    try:
        found = _identify(path, expected)
    except FileNotFoundError as error:
        gone = "a link to a file that is not there" if path.is_symlink() else "no such file"
        raise input_error(path, None, gone, _EXPECTED[expected]) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{str(path)!r}: cannot be read ({reason}); expected {_EXPECTED[expected]}") from error
    if found.kind != expected:
        raise input_error(path, None, found.words, _EXPECTED[expected], found.todo)
    return expected


def misnamed(path: Path) -> str:
    """What a model or weights are under another suffix, and what to do; empty for any other file."""
    try:
        found = _identify(path, "ONNX")
    except OSError:
        return ""
    model = found.kind is not None or (found.todo == _ADVICE and found.words not in _NO_MODELS)
    return f"{found.words}; {found.todo}" if model else ""


def _identify(path: Path, expected: Kind) -> _Found:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return _Found("a directory", todo="name the file inside it")
    if not stat.S_ISREG(mode):
        return _Found("no regular file", todo="name a file")
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        return _Found("an empty file", todo="copy it again")
    if head.startswith(b"PK\x03\x04"):
        return _in_archive(path)
    if head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return _Found("a Python pickle, which can run any code when it is loaded")
    for magic, words, todo in _FOREIGN:
        if head.lstrip().startswith(magic):
            return _Found(words, todo=todo)
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return _Found("safetensors weights without a model")
    onnx = _as_onnx(path)
    if onnx is not None:
        return onnx
    if expected == "TensorRT":  # the format is not published; any other bytes may be an engine
        return _Found(_EXPECTED["TensorRT"], kind="TensorRT")
    return _Found("bytes that are no model file known here", todo="check that it is whole")


def _as_onnx(path: Path) -> _Found | None:
    """An ONNX model, complete or truncated; ``None`` for anything else."""
    seen: set[int] = set()
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as message,
    ):
        try:
            for field in fields(message):
                field.data.release()  # no view may point into the file when it is closed
                if field.number not in _ONNX_FIELDS:
                    return None
                seen.add(field.number)
        except WireError:
            if _ONNX_VERSION not in seen:
                return None
            return _Found("a damaged or truncated ONNX model", todo="copy it again")
    if _ONNX_VERSION not in seen:
        return None
    if _ONNX_GRAPH not in seen:
        return _Found("an ONNX model without a graph", todo="copy it again")
    return _of_kind("ONNX")


def _of_kind(kind: Kind) -> _Found:
    return _Found(_EXPECTED[kind], kind=kind, todo=f"name it {_RENAME.get(kind, '')}")


def _in_archive(path: Path) -> _Found:
    """Identify one of PyTorch's formats, which are zip archives that hold one folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2]: name for name in archive.namelist()}
            if "archive_format" in names:
                return _exported(archive, names)
            if "serialized_exported_program.json" in archive.namelist():  # as torch.export wrote it before 2.8
                return _of_kind("torch.export")
            if "constants.pkl" in names and any(name.startswith("code/") for name in names):
                return _of_kind("TorchScript")
            if "data.pkl" in names:
                return _pickled(_member(archive, names["data.pkl"]))
    except DAMAGES:
        return _Found("a damaged or truncated archive", todo="copy it again")
    return _Found(_NO_MODEL)


def _exported(archive: zipfile.ZipFile, names: dict[str, str]) -> _Found:
    if any(name.startswith("data/aotinductor/") for name in names):
        return _Found("a package of compiled machine code (AOTInductor)", todo="save the exported program itself")
    if not any(name.startswith("models/") for name in names):
        return _Found("an archive of torch.export without a model in it", todo="save it again")
    unsafe = [name for name in names if "/opaque_obj_" in name]
    for inner, name in names.items():
        if inner.endswith("_config.json"):
            unsafe += _pickled_entries(json.loads(_member(archive, name)))
    if unsafe:
        return _Found(f"pickled objects in it ({unsafe[0]}), which can run any code when they are loaded")
    return _of_kind("torch.export")


def _pickled_entries(document: object) -> list[str]:
    """Names of a configuration's pickled entries, except objects that only C++ reads."""
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(config, dict):
        return []
    return [
        str(name)
        for name, entry in config.items()
        if isinstance(entry, dict)
        and entry.get("use_pickle")
        and not str(entry.get("path_name", "")).startswith("custom_obj_")
    ]


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as member:
        return member.read(_MOST_BYTES)


def _pickled(data: bytes) -> _Found:
    """Identify a ``torch.save`` file by the calls that loading it would make, without making them."""
    try:
        other = next((call for call in _calls(data) if not call.startswith(_TENSOR_CALLS)), None)
    except ValueError:
        return _Found("a damaged pickle", todo="copy it again")
    if other is None:
        return _Found("weights without the model (a state dict saved by torch.save)")
    name = ".".join(other.split())
    return _Found(f"a pickled object ({name}), which can run any code when it is loaded")


def _calls(data: bytes) -> Iterator[str]:
    """``module name`` of each import in a pickle."""
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
        if opcode.name == "GLOBAL":
            yield str(argument)
        elif opcode.name == "STACK_GLOBAL":
            yield " ".join(texts[-2:])
        elif isinstance(argument, str):
            texts.append(argument)
