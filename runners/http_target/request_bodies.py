"""What is sent for a request where no template says: by the protocol that the address speaks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from latfix.errors import InputError
from latfix.request import Request
from latfix.runners.http_target.address import Address
from latfix.runners.http_target.body_template import BodyTemplate
from latfix.runners.http_target.grpc_messages import framed, infer_request
from latfix.traffic.schedule import Traffic

#: One request's body.
Body = Callable[[Request], bytes]

_KSERVE = re.compile(r"/v2/models/[^/]+(?:/versions/[^/]+)?/(?:infer|generate|generate_stream)")
_WORD = "word "
#: Tokens asked for where the traffic does not say how many there were.
_TOKENS = 64


def protocol_of(path: str) -> str:
    """``chat``, ``completions``, ``kserve`` or ``json``, by the path of the address."""
    path = path.rstrip("/")
    if path.endswith("/chat/completions"):
        return "chat"
    if path.endswith("/completions"):
        return "completions"
    return "kserve" if _KSERVE.fullmatch(path) and path.endswith("/infer") else "json"


def models_path(path: str) -> str | None:
    """Where the service tells which models it has, or which inputs; ``None`` where the protocol has no such place."""
    protocol = protocol_of(path)
    if protocol in ("chat", "completions"):
        return re.sub(r"/(?:chat/)?completions/?$", "/models", path)
    return path.rstrip("/").removesuffix("/infer") if protocol == "kserve" else None


def body_for(address: Address, template: BodyTemplate | None, traffic: Traffic, told: Any, model: str) -> Body:
    """How a request becomes a body at an address, by the user's template where there is one.

    :param told: and ``model`` as in :func:`default_body`.
    :raises InputError: the traffic has nothing to send; from what is returned, of one request.
    """
    made = default_body(address.path, traffic, told, model) if template is None else template.render
    return (lambda request: framed(infer_request(address.path, made(request)))) if address.is_grpc else made


def default_body(path: str, traffic: Traffic, told: Any, model: str) -> Body:
    """How a request becomes a body.

    :param told: what the service answered at :func:`models_path`; ``None`` where it did not.
    :param model: as the user named it; empty for the first that the service tells.
    :raises InputError: the traffic has nothing to send, or no model is known.
    """
    protocol = protocol_of(path)
    if protocol == "json":
        return _plain
    if protocol == "kserve":
        inputs = told.get("inputs") if isinstance(told, Mapping) else None
        return _kserve(inputs if isinstance(inputs, list) else [], path)
    model = model or _first_model(told)
    if not model and not _names_model(traffic):
        raise InputError(f"{path}: found no model to ask for: the service tells none; name it with --model")
    return _completion(protocol, model)


def _plain(request: Request) -> bytes:
    """The payload, or the features where there is none."""
    return _encoded(dict(request.features) if request.payload is None else request.payload)


def _completion(protocol: str, model: str) -> Body:
    def body(request: Request) -> bytes:
        payload = request.payload
        own = dict(payload) if isinstance(payload, dict) else {}
        words = payload if isinstance(payload, str) else str(own.pop("prompt", "") if protocol == "chat" else "")
        words = words or _WORD * max(int(_number(request, "input_tokens", 16)), 1)
        asked: dict[str, Any] = {"stream": True, "max_tokens": int(_number(request, "output_tokens", _TOKENS))}
        if model:
            asked["model"] = model
        if protocol == "chat":
            asked["messages"] = [{"role": "user", "content": words}]
        else:
            asked["prompt"] = words
        asked |= own
        if asked["stream"]:
            asked.setdefault("stream_options", {"include_usage": True})
        return _encoded(asked)

    return body


def _kserve(inputs: list[Any], path: str) -> Body:
    known = {str(one.get("name")): one for one in inputs if isinstance(one, Mapping)}

    def body(request: Request) -> bytes:
        payload = request.payload
        if isinstance(payload, dict) and "inputs" in payload:
            return _encoded(payload)
        if payload is None:
            payload = {name: request.features[name] for name in known if name in request.features}
        elif not isinstance(payload, dict):
            payload = {next(iter(known)): payload} if len(known) == 1 else {}
        missing = f" and {', '.join(known)}" if known.keys() - payload.keys() else ""
        if not payload or missing:
            raise InputError(
                f"{path}: found a request without named inputs{missing}; expected features of these names, a payload "
                'such as {"input": [[1, 2]]}, a whole KServe v2 request, or --body'
            )
        tensors = [_tensor(name, value, known.get(name, {}), path) for name, value in payload.items()]
        return _encoded({"inputs": tensors})

    return body


def _tensor(name: str, value: Any, told: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A number or a nested list as KServe v2 has tensors: flat, with its shape.

    :param told: the input's metadata; dimensions that a value lacks in front are batches of one.
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
        raise InputError(f"{path}: found {name} with lists of different lengths; expected a tensor, all alike")
    asked = told.get("shape")
    shape = [1] * (len(asked) - len(shape) if isinstance(asked, list) else 0) + (shape or [1])
    first = flat[0] if flat else 0.0
    kinds = {bool: "BOOL", int: "INT64", float: "FP32", str: "BYTES"}
    datatype = str(told.get("datatype") or kinds.get(type(first), "FP32"))
    return {"name": name, "shape": shape, "datatype": datatype, "data": flat}


def _first_model(told: Any) -> str:
    listed = told.get("data") if isinstance(told, Mapping) else None
    first = listed[0] if isinstance(listed, list) and listed else None
    return str(first.get("id", "")) if isinstance(first, Mapping) else ""


def _names_model(traffic: Traffic) -> bool:
    return bool(len(traffic)) and all(isinstance(one, dict) and "model" in one for one in traffic.payloads)


def _number(request: Request, name: str, otherwise: float) -> float:
    value = request.features.get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else otherwise


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
