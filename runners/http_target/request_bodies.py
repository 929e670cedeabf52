"""Default request bodies by the protocol of the address, for replays without a template."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from latfix.errors import InputError
from latfix.request import Request
from latfix.runners.http_target.address import Address
from latfix.runners.http_target.body_template import BodyTemplate, encoded
from latfix.runners.http_target.grpc_messages import framed, infer_request
from latfix.traffic.schedule import Traffic

#: Makes one request's body.
Body = Callable[[Request], bytes]

_KSERVE = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?/(?:infer|generate|generate_stream)")
_WORD = "word "
#: Requested tokens if the traffic does not report the number.
_TOKENS = 64


def protocol_of(path: str) -> str:
    """``chat``, ``completions``, ``kserve`` or ``json``, from the path of the address."""
    path = path.rstrip("/")
    if path.endswith("/chat/completions"):
        return "chat"
    if path.endswith("/completions"):
        return "completions"
    return "kserve" if _KSERVE.fullmatch(path) and path.endswith("/infer") else "json"


def models_path(path: str) -> str | None:
    """The path of the service's model or input metadata; ``None`` if the protocol has none."""
    protocol = protocol_of(path)
    if protocol in ("chat", "completions"):
        return re.sub(r"/(?:chat/)?completions/?$", "/models", path)
    return path.rstrip("/").removesuffix("/infer") if protocol == "kserve" else None


def served_model(path: str, metadata: Any, model: str) -> str:
    """The model that requests go to, as the service calls it; empty if that is unknown."""
    named = _KSERVE.match(path)
    return named[1] if named else model or _first_model(metadata)


def body_for(
    address: Address, method: str, template: BodyTemplate | None, traffic: Traffic, metadata: Any, model: str
) -> Body:
    """The function that makes bodies for an address: the user's template, or the protocol's default.

    GET and DELETE have no body unless the user gives a template.

    :param metadata: as for :func:`default_body`, and so is ``model``.
    :raises InputError: the traffic has nothing to send; from the returned function, for one request.
    """
    if template is None and method in ("GET", "DELETE"):
        return lambda _request: b""
    made = default_body(address.path, traffic, metadata, model) if template is None else template.render
    return (lambda request: framed(infer_request(address.path, made(request)))) if address.is_grpc else made


def default_body(path: str, traffic: Traffic, metadata: Any, model: str) -> Body:
    """The function that makes bodies by the protocol of ``path``.

    :param metadata: the service's answer at :func:`models_path`; ``None`` without one.
    :param model: as named by the user; empty for the first that the service lists.
    :raises InputError: the traffic has nothing to send, or no model is known.
    """
    protocol = protocol_of(path)
    if protocol == "json":
        return _plain
    if protocol == "kserve":
        inputs = metadata.get("inputs") if isinstance(metadata, Mapping) else None
        return _kserve(inputs if isinstance(inputs, list) else [], path)
    model = model or _first_model(metadata)
    if not (model or (len(traffic) and all(isinstance(one, dict) and "model" in one for one in traffic.payloads))):
        raise InputError(f"{path}: found no model: the service lists none; name it with --model")
    return _completion(protocol, model)


def _plain(request: Request) -> bytes:
    """The payload, or the features without one."""
    return encoded(dict(request.features) if request.payload is None else request.payload)


def _completion(protocol: str, model: str) -> Body:
    def body(request: Request) -> bytes:
        payload = request.payload
        own = dict(payload) if isinstance(payload, dict) else {}
        words = payload if isinstance(payload, str) else str(own.pop("prompt", "") if protocol == "chat" else "")
        words = words or _WORD * max(int(_number(request, "input_tokens", 16)), 1)
        document: dict[str, Any] = {"stream": True, "max_tokens": int(_number(request, "output_tokens", _TOKENS))}
        if model:
            document["model"] = model
        if protocol == "chat":
            document["messages"] = [{"role": "user", "content": words}]
        else:
            document["prompt"] = words
        document |= own
        if document["stream"]:
            document.setdefault("stream_options", {"include_usage": True})
        return encoded(document)

    return body


def _kserve(inputs: list[Any], path: str) -> Body:
    metadata = {str(one.get("name")): one for one in inputs if isinstance(one, Mapping)}

    def body(request: Request) -> bytes:
        payload = request.payload
        if isinstance(payload, dict) and "inputs" in payload:
            return encoded(payload)
        if payload is None:
            payload = {name: request.features[name] for name in metadata if name in request.features}
        elif not isinstance(payload, dict):
            payload = {next(iter(metadata)): payload} if len(metadata) == 1 else {}
        missing = f" and {', '.join(metadata)}" if metadata.keys() - payload.keys() else ""
        if not payload or missing:
            raise InputError(
                f"{path}: found a request without named inputs{missing}; expected features of these names, a payload "
                'such as {"input": [[1, 2]]}, a whole KServe v2 request, or --body'
            )
        tensors = [_tensor(name, value, metadata.get(name, {}), path) for name, value in payload.items()]
        return encoded({"inputs": tensors})

    return body


def _tensor(name: str, value: Any, metadata: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A number or nested list as a tensor of KServe v2: flat, with its shape.

    :param metadata: of the input; leading dimensions that the value lacks become 1.
    :raises InputError: the list is ragged.
    """
    shape: list[int] = []
    flat = value if isinstance(value, list) else [value]
    level: Any = flat
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    for _ in shape[1:]:
        flat = [item for inner in flat for item in (inner if isinstance(inner, list) else [inner])]
    if math.prod(shape) != len(flat):
        raise InputError(f"{path}: found {name} with lists of different lengths; expected lists of equal length")
    expected = metadata.get("shape")
    shape = [1] * (len(expected) - len(shape) if isinstance(expected, list) else 0) + (shape or [1])
    first = flat[0] if flat else 0.0
    kinds = {bool: "BOOL", int: "INT64", float: "FP32", str: "BYTES"}
    datatype = str(metadata.get("datatype") or kinds.get(type(first), "FP32"))
    return {"name": name, "shape": shape, "datatype": datatype, "data": flat}


def _first_model(metadata: Any) -> str:
    listed = metadata.get("data") if isinstance(metadata, Mapping) else None
    first = listed[0] if isinstance(listed, list) and listed else None
    return str(first.get("id", "")) if isinstance(first, Mapping) else ""


def _number(request: Request, name: str, otherwise: float) -> float:
    value = request.features.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else otherwise
