"""A replay against an address, from its options to its record: checks, a replaying process, the record."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import InputError, LatfixError, RunnerError
from latfix.profilers.services.listening_processes import accept_beside, innermost, program
from latfix.profilers.services.prometheus_metrics import LONGEST_TEXT, parse_metrics
from latfix.run_record.run_record import RunRecord
from latfix.runners.http_target.address import Address, Trust, parse_address
from latfix.runners.http_target.body_template import BodyTemplate, target_template
from latfix.runners.http_target.connection import Endpoint
from latfix.runners.http_target.grpc_messages import (
    GRPC_HEADERS,
    SERVICE,
    framed,
    metadata_request,
    read_metadata,
    read_name,
)
from latfix.runners.http_target.http_messages import request_head
from latfix.runners.http_target.replay_loop import failure_words
from latfix.runners.http_target.request_bodies import body_for, models_path, served_model
from latfix.runners.http_target.server_watch import opener
from latfix.runners.replay.run_session import Replay, prepare_folder, replay_into
from latfix.runners.replay.runner_process import OnEvent, RunnerProcess
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

_CONNECT_S = 10.0
_LOOKED_AT = 50
_LONGEST_NAME = 100
#: The request is at fault if the service refuses it; any other failure is the service's, as is a limit of its rate.
_REFUSED = re.compile(r": HTTP (3\d\d|4(?!08|29)\d\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReplay:
    """The specification of a replay against a service, already checked.

    :param headers: with their values, which stay out of the record.
    :param body: template of the requests' bodies; ``None`` for the protocol's default.
    :param spec: name, traffic and objective.
    :param model_metadata: the service's metadata of its models.
    :param pid: the service's process on this machine; ``None`` if it is not watched.
    :param listening: processes of this machine that accept the address's connections, as far as they can be seen.
    :param metrics: address of its metrics; ``None`` if they are not read.
    :param server: the server's name; empty if unknown.
    """

    address: Address
    endpoint: Endpoint
    spec: WorkloadSpec
    traffic: Traffic
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: BodyTemplate | None = None
    model_metadata: Any = None
    model: str = ""
    timeout_s: float = 60.0
    keep_alive: bool = True
    trust: Trust = field(default_factory=Trust)
    pid: int | None = None
    listening: tuple[int, ...] = ()
    metrics: str | None = None
    server: str = ""
    slo: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    @property
    def beside(self) -> tuple[int, ...] | None:
        """As :func:`accept_beside`; ``None`` also if no process is watched."""
        return None if self.pid is None else accept_beside(self.pid, self.listening)

    def check(self) -> None:
        """Raise an InputError if bodies cannot be made from the traffic."""
        for template in (target_template(self.address.target), self.body):
            if template is not None:
                template.check(self.traffic)
        body = body_for(self.address, self.method, self.body, self.traffic, self.model_metadata, self.model)
        for k in range(min(len(self.traffic), _LOOKED_AT)):
            body(self.traffic.request(k))

    def job(self, run: str) -> dict[str, Any]:
        """The job description for the replaying process.

        :param run: makes the ids of its requests unique (:mod:`latfix.traffic.sent_ids`).
        """
        address = self.address
        return {
            "run": run,
            "address": address.url,
            "family": int(self.endpoint.family),
            "place": list(self.endpoint.place),
            "method": "POST" if address.is_grpc else self.method,
            "target": f"{SERVICE}ModelInfer" if address.is_grpc else address.target,
            "headers": {**self.headers, **(GRPC_HEADERS if address.is_grpc else {})},
            "body": None if self.body is None else self.body.text,
            "metadata": self.model_metadata,
            "model": self.model,
            "path": address.path,
            "served_model": served_model(address.path, self.model_metadata, self.model),
            "timeout_s": self.timeout_s,
            "keep_alive": self.keep_alive,
            "cacert": self.trust.cacert,
            "insecure": self.trust.insecure,
            "pid": self.pid,
            "beside": list(self.beside or ()),
            "metrics": self.metrics,
        }


def reach(address: Address, trust: Trust) -> Endpoint:
    """Connect once before anything is replayed; an InputError with the reason if nothing listens there."""
    tls = trust.context(http2=address.is_grpc) if address.secure else None
    try:
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise InputError(f"{address.shown}: found no host {address.host} ({reason}); check the address") from error
    failure: OSError | None = None
    for family, _, _, _, place in addresses:
        try:
            with socket.create_connection((str(place[0]), address.port), _CONNECT_S) as sock:
                if tls is not None:
                    _shake_hands(address, tls, sock)
        except OSError as error:
            failure = error
        else:
            return Endpoint(family=int(family), place=tuple(place), tls=tls, name=address.host)
    why = str(failure and failure.strerror).lower()
    if isinstance(failure, TimeoutError):
        why = f"no answer within {_CONNECT_S:g} s"
    raise InputError(
        f"{address.shown}: found no service on {address.host}:{address.port} ({why}); start the service first"
    )


def _shake_hands(address: Address, tls: ssl.SSLContext, sock: socket.socket) -> None:
    """One TLS handshake; an InputError if it fails."""
    try:
        tls.wrap_socket(sock, server_hostname=address.host).close()
    except ssl.SSLCertVerificationError as error:
        todo = "--cacert FILE trusts its authority, --insecure trusts any certificate"
        raise InputError(f"{address.shown}: {failure_words(error)}; {todo}") from error
    except OSError as error:
        why = "no answer to it" if isinstance(error, TimeoutError) else failure_words(error)
        raise InputError(f"{address.shown}: the TLS handshake failed ({why}); is it an http address?") from error


def read_model_metadata(address: Address, endpoint: Endpoint, headers: Mapping[str, str], trust: Trust) -> Any:
    """The service's metadata of its models, if its protocol has any; ``None`` otherwise."""
    if address.is_grpc:
        message = metadata_request(address.path)
        return read_metadata(_call(address, endpoint, headers, "ModelMetadata", message))
    path = models_path(address.path)
    text = None if path is None else _page_text(address.at(path), headers, trust)
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def find_metrics(address: Address, headers: Mapping[str, str], option: str | None, trust: Trust) -> str | None:
    """The address of the service's metrics: the option's, or ``/metrics``; ``None`` if there are none.

    :raises InputError: there are none at the option's address.
    """
    if option == "off" or (option is None and address.is_grpc):
        return None
    place = address.at("/metrics") if option is None else parse_address(option)
    text = _page_text(place, headers, trust)
    if text is not None and parse_metrics(text):
        return place.url
    if option is not None:
        raise InputError(f"--metrics: found no metrics at {place.shown}; expected Prometheus' text format, or off")
    return None


def server_name(address: Address, endpoint: Endpoint, headers: Mapping[str, str], trust: Trust) -> str:
    """The server's name: the ``Server`` header, or over gRPC its metadata; empty if it has none.

    LitServe is behind uvicorn's header, and recognized by its page of settings.
    """
    if address.is_grpc:
        return read_name(_call(address, endpoint, headers, "ServerMetadata", b""))[:_LONGEST_NAME]
    request = urllib.request.Request(address.at("/metrics").url, headers=dict(headers), method="HEAD")
    try:
        with opener(trust).open(request, timeout=_CONNECT_S) as answer:
            answer_headers = answer.headers
    except urllib.error.HTTPError as error:  # an error answer has the header too
        answer_headers = error.headers
    except (OSError, http.client.HTTPException, ValueError):
        return ""
    name = str(answer_headers.get("Server", ""))[:_LONGEST_NAME]
    settings = _page_text(address.at("/info"), headers, trust) if name.startswith("uvicorn") else None
    return "LitServe" if settings is not None and '"workers_per_device"' in settings else name


def _call(address: Address, endpoint: Endpoint, headers: Mapping[str, str], method: str, message: bytes) -> bytes:
    """The message that answers a gRPC call; empty if there is none."""
    from latfix.runners.http_target.grpc_connection import call

    head = request_head("POST", SERVICE + method, address.host_header, {**headers, **GRPC_HEADERS}, keep_alive=True)
    return call(endpoint, head + b"\r\n" + framed(message), _CONNECT_S)


def _page_text(address: Address, headers: Mapping[str, str], trust: Trust) -> str | None:
    """The text of a page; ``None`` if there is none."""
    request = urllib.request.Request(address.url, headers=dict(headers))
    try:
        with opener(trust).open(request, timeout=_CONNECT_S) as answer:
            return str(answer.read(LONGEST_TEXT).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException, ValueError):
        return None


def run(path: Path, replay: HttpReplay, *, on_event: OnEvent | None = None) -> RunRecord:
    """One replay, recorded in ``path``.

    :raises Interrupted: Ctrl-C; carries the record.
    :raises InputError: no request was served, and the service's reason is the request (HTTP 4xx).
    :raises RunnerError: no request was served, for another reason.
    :raises LatfixError: the replay failed; what was recorded is kept.
    """
    planned = Replay(spec=replay.spec, traffic=replay.traffic, settings=RunnerSettings(), seed=replay.seed)
    folder, run_word, beside = prepare_folder(path, planned), secrets.token_hex(4), replay.beside
    folder.update(
        source={"kind": "http", "path": replay.address.shown},
        workload_folder="",
        device="http",
        http={
            "run": run_word,
            "method": replay.method,
            "headers": sorted(replay.headers),
            "keep_alive": replay.keep_alive,
            "timeout_s": replay.timeout_s,
            "slo": dict(replay.slo),
            "pid": replay.pid,
            "program": "" if replay.pid is None else program(replay.pid),
            "accepts": None if replay.pid is None or not replay.listening else beside is not None,
            "listening": {str(each): program(each) for each in replay.listening},
            "beside": list(beside or ()),
            "workers": list(innermost(replay.listening)),
            "metrics": None if replay.metrics is None else replay.metrics.partition("?")[0],
            "server": replay.server,
        },
    )
    job, module = replay.job(run_word), "latfix.runners.http_target.replay_main"
    with RunnerProcess(Path(), "", RunnerSettings(), path / "runner.log", module=module, job=job) as process:
        try:
            process.start()
        except (LatfixError, KeyboardInterrupt) as error:
            folder.fail(str(error) or "interrupted while starting")
            raise
        record = replay_into(process, folder, on_event=on_event)
    if record.meta.failure or (record.errors and not len(record.latencies_ns())):
        why = record.meta.failure or f"no request ended ok; the first failure: {next(iter(record.errors.values()))}"
        kind = InputError if _REFUSED.search(why) else RunnerError
        why += "; name the method with --method" if "HTTP 405" in why else ""
        why += "; --body says what a request looks like there" if "HTTP 422" in why else ""
        why += "; give that address, redirects are not followed" if ": HTTP 3" in why else ""
        raise kind(f"{replay.address.shown}: {why}; what was recorded is in {path}")
    return record
