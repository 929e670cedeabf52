"""The address of a service, and what all requests share: headers, trust, timeouts."""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from latfix.errors import InputError

SCHEMES = ("http", "https", "grpc", "grpcs")
#: The default port of each scheme; Triton's for gRPC.
_PORTS = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 443}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHODS = ("POST", "PUT", "PATCH", "GET", "DELETE")
#: Headers that the replay sets itself.
_OWN = {"content-length", "transfer-encoding", "connection", "host"}
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_LONGEST_TIMEOUT_S = 86_400.0


def is_address(workload: str) -> bool:
    """True if the argument is the address of a service, not a folder or file."""
    return "://" in workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a service listens.

    :param target: path and query, as requested; ``{name}`` stands for a value of the request.
    :param shown: the address for records and messages: without user, password and values of the query.
    :param authorization: the header for the user and password in the address; empty for none.
    """

    scheme: str
    host: str
    port: int
    target: str
    shown: str
    authorization: str = ""

    @property
    def name(self) -> str:
        """Name of a run: host and path."""
        return self.shown.partition("://")[2].partition("?")[0].rstrip("/")

    @property
    def path(self) -> str:
        """The path alone, without a query."""
        return self.target.partition("?")[0]

    @property
    def secure(self) -> bool:
        """Over TLS."""
        return self.scheme in ("https", "grpcs")

    @property
    def is_grpc(self) -> bool:
        """KServe v2 over gRPC."""
        return self.scheme.startswith("grpc")

    @property
    def host_header(self) -> str:
        """Value of the ``Host`` header: with the port only if it is not the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] and not self.is_grpc else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as requested, with the values of the query."""
        return f"{self.scheme}://{self.host_header}{self.target}"

    def at(self, target: str) -> Address:
        """Another path of the same service."""
        return replace(self, target=target, shown=f"{self.scheme}://{self.host_header}{target}")


def parse_address(text: str) -> Address:
    """Parse an address such as ``http://host:port/path``.

    :raises InputError: it is not an address, or its protocol is not supported.
    """
    expected = "an address such as http://127.0.0.1:8000/predict"
    try:
        parts = urlsplit(text)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode("ascii")
    except ValueError as error:
        raise InputError(f"{text}: found {error}; expected {expected}") from error
    if parts.scheme not in SCHEMES:
        raise InputError(
            f"{text}: found the protocol {parts.scheme!r}; expected http or https, or grpc for KServe v2 (Triton)"
        )
    if not host or not text.isprintable() or " " in text:
        raise InputError(f"{text}: found no host in it; expected {expected}")
    if port == 0:
        raise InputError(f"{text}: found port 0; expected one from 1 to 65535")
    port = port or _PORTS[parts.scheme]
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._{}")
    where = f"[{host}]" if ":" in host else host
    place = f"{parts.scheme}://{where}{'' if parts.port is None else f':{port}'}{target}"
    # Values of the query may be keys of the service.
    names = "&".join(f"{name}=…" for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return Address(
        scheme=parts.scheme,
        host=host,
        port=port,
        target=f"{target}?{quote(parts.query, safe='/%:@!$&()*+,;=?~-._{}')}" if parts.query else target,
        shown=f"{place}?{names}" if names else place,
        authorization=_basic(parts),
    )


def _basic(parts: SplitResult) -> str:
    if not parts.username:
        return ""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def parse_headers(
    options: Sequence[str], address: Address, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Parse ``--header "Name: value"``; ``$NAME`` in a value refers to the environment.

    :raises InputError: an option is not a header, names one that the replay sets itself, or uses an unset variable.
    """
    environment = os.environ if environment is None else environment
    headers = {"Authorization": address.authorization} if address.authorization else {}
    for option in options:
        name, colon, value = option.partition(":")
        name = name.strip()
        if not colon or not _TOKEN.fullmatch(name):
            raise InputError('--header: found a header without a name; expected "Name: value"')
        if name.lower() in _OWN:
            raise InputError(f"--header: found {name}, which the replay sets itself; leave it out")
        value = _expanded(value.strip(), name, environment)
        if not value.isprintable() or not value.isascii():
            raise InputError(f"--header: found a value of {name} that is not printable ASCII; encode it first")
        headers = {earlier: kept for earlier, kept in headers.items() if earlier.lower() != name.lower()}
        headers[name] = value
    return headers


def _expanded(value: str, header: str, environment: Mapping[str, str]) -> str:
    def variable(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        if name not in environment:
            raise InputError(f"--header: found ${name} in {header}, and no such variable; export {name}=… first")
        return environment[name]

    return _VARIABLE.sub(variable, value)


def check_method(method: str) -> str:
    """The method in capitals; an InputError for a method that carries no request."""
    if method.upper() not in _METHODS:
        raise InputError(f"--method: found {method!r}; expected one of {', '.join(_METHODS)}")
    return method.upper()


def check_timeout(seconds: float) -> float:
    """Check the seconds after which a request is given up; an InputError if not above 0 and at most a day."""
    if not 0 < seconds <= _LONGEST_TIMEOUT_S:
        raise InputError(f"--timeout: found {seconds:g}; expected seconds above 0, at most {_LONGEST_TIMEOUT_S:,.0f}")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How a server's certificate is checked.

    :param cacert: a file of trusted certificates that replaces the system's; empty for the system's.
    :param insecure: trust any certificate.
    """

    cacert: str = ""
    insecure: bool = False

    def context(self, *, http2: bool = False) -> ssl.SSLContext:
        """The TLS context of connections.

        :param http2: negotiate HTTP/2 with the server.
        :raises InputError: the file holds no certificate.
        """
        try:
            context = ssl.create_default_context(cafile=self.cacert or None)
        except (OSError, ssl.SSLError) as error:
            reason = "no certificate in PEM form" if Path(self.cacert).is_file() else "no such file"
            raise InputError(f"--cacert: found {reason}: {self.cacert}; expected certificates to trust") from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if http2:
            context.set_alpn_protocols(["h2"])
        return context
