"""A live runner's requests: conversion of a caller's mapping, and the errors that a request can end with."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from latfix.errors import InputError, RunnerError
from latfix.formatting import shown
from latfix.request import PRIORITIES, FeatureValue, Priority, Request
from latfix.traffic.derived_features import parse_mapping
from latfix.traffic.feature_expressions import Expression
from latfix.traffic.parsed_fields import REQUEST_FIELDS
from latfix.traffic.value_parsers import Unreadable, deadline_ms, feature, label

T = TypeVar("T")

_NESTED = "features"
#: Some 31 years: longer limits count as none, and their nanoseconds would overflow.
LONGEST_MS = 1e12


class RequestError(RunnerError):
    """Base class of all ends of a request other than an answer; ``request_id`` is empty for none."""

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id


class RequestFailed(RequestError):
    """``prepare``, the model or ``finish`` raised an error for this request. Sending it again will fail again."""


class RequestTimedOut(RequestError):
    """Its deadline passed before there was an answer."""


class RequestShed(RequestError):
    """It was not admitted because the maximum number of requests is inside. It may be later."""


class RunnerClosed(RequestError):
    """The runner no longer serves: it was closed, one of its threads died, or this process is a fork."""


class RequestReader:
    """Converts mappings to requests, by the rules for a line of recorded traffic.

    :param mapping: features derived from others, as in ``[traffic.map]`` of the workload.
    :param started_ns: zero of ``arrival_s`` on the clock of ``time.perf_counter_ns``.
    """

    def __init__(self, mapping: Mapping[str, str], started_ns: int) -> None:
        self._derived = parse_mapping(mapping)
        self._started_ns = started_ns
        self._numbers = itertools.count()

    def read(self, given: Request | Mapping[str, Any], arrival_ns: int) -> Request:
        """Convert ``given`` to a request; a :class:`latfix.Request` is checked and used unmodified.

        Keys of a mapping are those of a line of native traffic without ``arrival_s``: ``id``, ``priority``,
        ``session``, ``deadline_ms``, ``payload``; every other key is a feature. ``features`` may hold features
        as a nested mapping. Features that the workload derives from others are derived here too.

        :raises InputError: a value that is not valid in traffic either; the message names the key. The engine's
            threads serve all callers, so invalid values must not reach them.
        """
        if isinstance(given, Request):
            return _checked(given)
        if not isinstance(given, Mapping):
            raise InputError(f"request: found a {type(given).__name__}; expected a latfix.Request or a mapping")
        priority = given.get("priority")
        return Request(
            id=_read("id", label, given.get("id")) or f"live-{next(self._numbers)}",
            arrival_s=(arrival_ns - self._started_ns) / 1e9,
            features=self._features(given),
            priority=_read("priority", _priority, "normal" if priority is None else priority),
            session=_read("session", label, given.get("session")),
            deadline_ms=_read("deadline_ms", _limit_ms, given.get("deadline_ms")),
            payload=given.get("payload"),
        )

    def _features(self, given: Mapping[str, Any]) -> dict[str, FeatureValue]:
        read = {name: _read(name, feature, value) for name, value in _named(given)}
        features = {name: value for name, value in read.items() if value is not None}
        for name, expression in self._derived.items():
            features[name] = _read(name, functools.partial(_derived, expression), features)
        return features


def _named(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The features of a request by name, those of the nested mapping last."""
    nested = given.get(_NESTED)
    if nested is not None and not isinstance(nested, Mapping):
        raise InputError(f"request: {_NESTED}: found {shown(nested)}; expected a mapping of features by name")
    for source in (given, nested or {}):
        for name, value in source.items():
            if not isinstance(name, str) or not name or not name.isprintable():
                raise InputError(f"request: found feature name {shown(name)}; expected a printable text")
            if source is nested or (name not in REQUEST_FIELDS and name != _NESTED):
                yield name, value


def _derived(expression: Expression, features: Mapping[str, FeatureValue]) -> FeatureValue:
    absent = next((used for used in expression.names if used not in features), None)
    if absent is not None:
        raise Unreadable(f"no feature {absent}", f"it, because the workload derives {expression.source!r} from it")
    try:
        return expression.evaluate(features)
    except ValueError as error:
        raise Unreadable(str(error), f"features from which {expression.source!r} is a finite number") from error


def _checked(request: Request) -> Request:
    """Check a request that the caller constructed."""
    _read("priority", _priority, request.priority)
    limit_ms = _read("deadline_ms", _limit_ms, request.deadline_ms)
    if not isinstance(request.features, Mapping):
        raise InputError(
            f"request: features: found {shown(request.features)}; expected a mapping of features by name"
        )
    return request if limit_ms == request.deadline_ms else replace(request, deadline_ms=limit_ms)


def _limit_ms(value: object) -> float | None:
    limit = deadline_ms(value)
    return None if math.isnan(limit) else min(limit, LONGEST_MS)


def _priority(value: object) -> Priority:
    result = next((priority for priority in PRIORITIES if isinstance(value, str) and priority == value), None)
    if result is None:
        raise Unreadable(shown(value), "high, normal or low")
    return result


def _read(key: str, parse: Callable[[Any], T], value: Any) -> T:
    try:
        return parse(value)
    except Unreadable as error:
        todo = f"; {error.todo}" if error.todo else ""
        raise InputError(f"request: {key}: found {error.found}; expected {error.expected}{todo}") from error
