"""KServe v2's gRPC messages: requests from the same document as over HTTP, and the metadata of a model's inputs.

Tensors are sent as raw bytes, as Triton's own client does. Field numbers are those of the published
``grpc_predict_v2.proto`` (https://kserve.github.io/website/docs/reference/oip/grpc-api).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from latfix.errors import InputError
from latfix.files.protobuf_wire import WireError, fields, number_field, packed_numbers, text_field
from latfix.runners.http_target.address import Address

#: Headers of every call.
GRPC_HEADERS = {"Content-Type": "application/grpc"}
SERVICE = "/inference.GRPCInferenceService/"
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer/?")
_TYPES: dict[str, Any] = {
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    "BOOL": "?",
}
#: gRPC's codes by number: name, and corresponding HTTP status.
CODES = {
    1: ("CANCELLED", 499),
    2: ("UNKNOWN", 500),
    3: ("INVALID_ARGUMENT", 400),
    4: ("DEADLINE_EXCEEDED", 504),
    5: ("NOT_FOUND", 404),
    6: ("ALREADY_EXISTS", 409),
    7: ("PERMISSION_DENIED", 403),
    8: ("RESOURCE_EXHAUSTED", 429),
    9: ("FAILED_PRECONDITION", 400),
    10: ("ABORTED", 409),
    11: ("OUT_OF_RANGE", 400),
    12: ("UNIMPLEMENTED", 501),
    13: ("INTERNAL", 500),
    14: ("UNAVAILABLE", 503),
    15: ("DATA_LOSS", 500),
    16: ("UNAUTHENTICATED", 401),
}


def check_supported(address: Address) -> None:
    """Raise an InputError if the address names no model, or the package ``h2`` is not installed."""
    model_of(address.path)
    if find_spec("h2") is None:
        raise InputError(f"{address.shown}: gRPC needs the package h2; pip install 'latfix[grpc]'")


def model_of(path: str) -> tuple[str, str]:
    """Name and version of the model in an address's path; the version is empty to leave the choice to the server.

    :raises InputError: the path names no model.
    """
    match = _MODEL.fullmatch(path)
    if match is None:
        raise InputError(f"{path}: found no model; expected grpc://host:8001/v2/models/NAME/infer")
    return match[1], match[2] or ""


def framed(message: bytes) -> bytes:
    """A message framed for gRPC, uncompressed."""
    return struct.pack(">BI", 0, len(message)) + message


def infer_request(path: str, document: bytes) -> bytes:
    """Convert a KServe v2 request in JSON to ``ModelInferRequest``.

    :param path: of the address, which names the model.
    :raises InputError: the document is not such a request, or holds a value that cannot be encoded.
    """
    try:
        request = json.loads(document)
    except ValueError as error:
        raise InputError(f"{path}: found a body that is not JSON ({error}); expected a KServe v2 request") from error
    inputs = _tensors(request, "inputs", path)
    outputs = _tensors(request, "outputs", path) if request.get("outputs") else []
    name, version = model_of(path)
    parts = [text_field(1, name), text_field(2, version), text_field(3, str(request.get("id", "")))]
    parts += _parameters(4, request, path)
    raw = []
    for one in inputs:
        datatype = str(one.get("datatype", ""))
        tensor = [text_field(1, str(one.get("name", ""))), text_field(2, datatype)]
        try:
            tensor += [number_field(3, int(size)) for size in one.get("shape", ())]
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: found shape {one['shape']!r}; expected a list of whole numbers") from error
        parts.append(text_field(5, b"".join([*tensor, *_parameters(4, one, path)])))
        raw.append(text_field(7, _raw(one.get("data"), datatype, f"{path}: {one.get('name', '')}"), always=True))
    for wanted in outputs:
        output = b"".join([text_field(1, str(wanted.get("name", ""))), *_parameters(2, wanted, path)])
        parts.append(text_field(6, output))
    return b"".join(parts + raw)


def _tensors(request: Any, name: str, path: str) -> list[dict[str, Any]]:
    """The tensors that a request lists under ``inputs`` or ``outputs``."""
    listed = request.get(name) if isinstance(request, dict) else None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise InputError(f"{path}: found a body without a list of {name}; expected a KServe v2 request")
    return listed


def _raw(data: Any, datatype: str, where: str) -> bytes:
    """A tensor's numbers in row-major order, or its strings, each preceded by its length."""
    try:
        if datatype == "BYTES":
            texts = [str(text).encode() for text in np.array(data, dtype=object).ravel().tolist()]
            return b"".join(struct.pack("<I", len(text)) + text for text in texts)
        if datatype == "BF16":  # the upper half of a float32
            return (np.array(data, "<f4").ravel().view("<u4") >> 16).astype("<u2").tobytes()
        return np.array(data, _TYPES[datatype]).tobytes()
    except KeyError as error:
        known = ", ".join([*_TYPES, "BF16", "BYTES"])
        raise InputError(f"{where}: found datatype {datatype!r}; expected one of {known}") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{where}: found data that is not {datatype} ({error}); expected a flat list") from error


def _parameters(number: int, holder: Mapping[str, Any], path: str) -> list[bytes]:
    """Encode a map of parameters (booleans, integers, strings, floats) as field ``number``."""
    entries, given = [], holder.get("parameters") or {}
    if not isinstance(given, dict):
        raise InputError(f"{path}: found parameters {given!r}; expected an object")
    for name, value in given.items():
        if isinstance(value, bool | int):
            held = number_field(1 if isinstance(value, bool) else 2, int(value), always=True)
        elif isinstance(value, str):
            held = text_field(3, value, always=True)
        elif isinstance(value, float):
            held = b"\x21" + struct.pack("<d", value)  # field 4, eight bytes
        else:
            raise InputError(f"{path}: found parameter {name} = {value!r}; expected a boolean, a number or a text")
        entries.append(text_field(number, text_field(1, name) + text_field(2, held)))
    return entries


def metadata_request(path: str) -> bytes:
    """``ModelMetadataRequest`` for the model in an address."""
    name, version = model_of(path)
    return text_field(1, name) + text_field(2, version)


def read_metadata(message: bytes) -> dict[str, Any]:
    """The inputs of ``ModelMetadataResponse`` in KServe v2's JSON form; empty if the message is invalid."""
    try:
        inputs = [_tensor_metadata(field.data) for field in fields(memoryview(message)) if field.number == 4]
    except (WireError, UnicodeDecodeError):
        return {}
    return {"inputs": inputs}


def read_name(message: bytes) -> str:
    """The server's name in ``ServerMetadataResponse``; empty if missing."""
    try:
        return next((str(field.data, "utf-8") for field in fields(memoryview(message)) if field.number == 1), "")
    except (WireError, UnicodeDecodeError):
        return ""


def _tensor_metadata(message: memoryview) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "", "datatype": "", "shape": []}
    for field in fields(message):
        if field.number in (1, 2):
            metadata["name" if field.number == 1 else "datatype"] = str(field.data, "utf-8")
        elif field.number == 3:
            metadata["shape"] += packed_numbers(field.data) if len(field.data) else [field.value]
    metadata["shape"] = [size - (1 << 64) if size >> 63 else size for size in metadata["shape"]]
    return metadata
