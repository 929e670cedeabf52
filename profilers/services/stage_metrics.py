"""Metrics in which servers sum up the time of their requests by stage: in the queue, in prefill, in compute.

Names and meanings are those of the servers' documentation; metrics of other servers are recognized by words in their
names. All are sums that grow: of a histogram or summary with its count, or a counter beside one of requests.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from latfix.profilers.evidence.outside.server_account import OTHERS, PREFIX, READINGS
from latfix.profilers.services.prometheus_metrics import finite_samples

#: Most metrics to keep that are not documented.
_MOST = 40


@dataclass(frozen=True, slots=True)
class _Known:
    """A documented metric.

    :param stage: ``queue``, ``prefill``, ``decode``, ``compute`` (prefill and decode together, or without such
        stages), or ``whole``: all of the request's time at the server.
    :param count: the counter of its requests; empty for a histogram or summary.
    :param labels: what a series must have.
    """

    stage: str
    name: str
    unit_ns: int
    count: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


_S, _MS, _US = 1_000_000_000, 1_000_000, 1_000
_TRITON, _TORCHSERVE = "nv_inference_request_success", "ts_inference_requests"
#: vLLM, Triton, TGI, SGLang, Ray Serve, TorchServe. ``:`` is written ``_``, as in metrics that Ray passes on.
_KNOWN: tuple[_Known, ...] = (
    _Known("queue", "vllm_request_queue_time_seconds", _S),
    _Known("prefill", "vllm_request_prefill_time_seconds", _S),
    _Known("decode", "vllm_request_decode_time_seconds", _S),
    _Known("whole", "vllm_e2e_request_latency_seconds", _S),
    _Known("queue", "nv_inference_queue_duration_us", _US, _TRITON),
    _Known("compute", "nv_inference_compute_infer_duration_us", _US, _TRITON),
    _Known("compute", "nv_inference_compute_input_duration_us", _US, _TRITON),
    _Known("compute", "nv_inference_compute_output_duration_us", _US, _TRITON),
    _Known("whole", "nv_inference_request_duration_us", _US, _TRITON),
    _Known("queue", "tgi_request_queue_duration", _S),
    _Known("compute", "tgi_request_inference_duration", _S),
    _Known("whole", "tgi_request_duration", _S),
    _Known("queue", "sglang_queue_time_seconds", _S),
    _Known("prefill", "sglang_per_stage_req_latency_seconds", _S, labels={"stage": "prefill_forward"}),
    _Known("whole", "sglang_e2e_request_latency_seconds", _S),
    _Known("queue", "serve_request_router_fulfillment_time_ms", _MS),
    _Known("compute", "serve_deployment_processing_latency_ms", _MS),
    _Known("whole", "serve_http_request_latency_ms", _MS),
    _Known("queue", "ts_queue_latency_microseconds", _US, _TORCHSERVE),
    _Known("whole", "ts_inference_latency_microseconds", _US, _TORCHSERVE),
)
_BY_NAME: dict[str, list[_Known]] = defaultdict(list)
for _one in _KNOWN:
    _BY_NAME[_one.name].append(_one)
_COUNTS = {one.count for one in _KNOWN if one.count}
_UNITS = {"seconds": _S, "s": _S, "milliseconds": _MS, "ms": _MS, "microseconds": _US, "us": _US}
#: Words in the names of other servers' histograms, the most specific first. Durations per token or batch do not count
#: requests, which their counts show.
_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("queue", re.compile(r"(^|_)(queue|queued|queueing|wait|waiting)(_|$)")),
    ("prefill", re.compile(r"(^|_)prefill(_|$)")),
    ("decode", re.compile(r"(^|_)decode(_|$)")),
    ("compute", re.compile(r"(^|_)(inference|predict|prediction|compute|forward|model|process|processing)(_|$)")),
    ("whole", re.compile(r"(^|_)(e2e|http|requests?|response)(_|$)")),
)
_DURATION = re.compile(r"(^|_)(time|duration|latency|delay|wait)(_|$)")
_PATHS = ("handler", "path", "route", "http_route", "endpoint", "url", "uri", "http_target")
_MODELS = ("model", "model_name")
_SUMS = ("sum", "count")
#: By metric of a stage (the series' names without the kind), the values by kind.
Readings = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Target:
    """The path and the model of the requests, by which series are selected; empty if unknown."""

    path: str = ""
    model: str = ""

    def fits(self, labels: Mapping[str, str]) -> bool:
        """True if a series may be that of the requests: no label names another path or model."""
        paths = [value for name, value in labels.items() if name in _PATHS]
        models = [value for name, value in labels.items() if name in _MODELS]
        return all(not self.path or _is_route(value, self.path) for value in paths) and all(
            not self.model or value == self.model for value in models
        )


def _is_route(route: str, path: str) -> bool:
    """True if a path belongs to a route such as ``/users/{id}``."""
    parts = re.split(r"\{[^}]*\}|<[^>]*>", route.rstrip("/"))
    return re.fullmatch("[^/]+".join(map(re.escape, parts)), path.rstrip("/")) is not None


def read_stages(text: str, target: Target) -> Readings:
    """The sums, in nanoseconds, and the counts of all stages in a service's metrics."""
    counts: dict[tuple[str, bool], float] = defaultdict(float)
    found: dict[_Key, dict[str, float]] = {}
    for name, labels, value in finite_samples(text):
        for own in {target.fits(labels), False}:
            if _plain(name) in _COUNTS:
                counts[_plain(name), own] += value
            for stage, metric, kind, unit_ns, counter in _meanings(name, labels):
                key = _Key(stage, metric, own, counter)
                if key in found or key.documented or len(found) < _MOST:
                    values = found.setdefault(key, defaultdict(float))
                    values[kind] += value * (unit_ns if kind == "sum" else 1)
    for key, values in found.items():
        if key.counter and (key.counter, key.own) in counts:
            values["count"] = counts[key.counter, key.own]
    whole = {key: values for key, values in found.items() if {"sum", "count"} <= values.keys()}
    return {
        str(key): values for key, values in whole.items() if key.own or values != whole.get(replace(key, own=True))
    }


@dataclass(frozen=True, slots=True)
class _Key:
    """A metric of a stage.

    :param own: only the series of the requests' own path and model.
    :param counter: that counts its requests; empty for a histogram.
    """

    stage: str
    metric: str
    own: bool
    counter: str

    @property
    def documented(self) -> bool:
        return _plain(self.metric) in _BY_NAME

    def __str__(self) -> str:
        return f"{PREFIX}{self.stage}|{(0 if self.documented else OTHERS) + (not self.own)}|{self.metric}"


def _plain(name: str) -> str:
    return name.removeprefix("ray_").replace(":", "_").removesuffix("_total")


def _meanings(name: str, labels: Mapping[str, str]) -> Iterator[tuple[str, str, str, int, str]]:
    """Stage, metric, kind, unit and counter of a sample that belongs to a stage."""
    for known in _BY_NAME.get(_plain(name), ()):
        if known.count:
            first = next(one.name for one in _KNOWN if (one.stage, one.count) == (known.stage, known.count))
            yield known.stage, first, "sum", known.unit_ns, known.count
    base, _, kind = name.rpartition("_")
    if kind not in ("sum", "count", "bucket"):
        return
    bare = _plain(base)
    stages = [(one.stage, one.unit_ns) for one in _BY_NAME.get(bare, ()) if one.labels.items() <= labels.items()]
    unit_ns = _UNITS.get(bare.rpartition("_")[2])
    if bare not in _BY_NAME and unit_ns is not None and _DURATION.search(bare):
        stages = [(stage, unit_ns) for stage, words in _WORDS if words.search(bare)][:1]
    for stage, unit_ns in stages:
        if kind != "bucket":
            yield stage, base, kind, unit_ns, ""
            continue
        with contextlib.suppress(ValueError):
            yield stage, base, f"le={float(labels.get('le', '')) * unit_ns / _S!r}", unit_ns, ""


def series_of(readings: Readings) -> dict[str, float]:
    """The series of a record: sums and counts, without buckets."""
    values = {
        f"{key}|{kind}": value for key, kinds in readings.items() for kind, value in kinds.items() if kind in _SUMS
    }
    return values | {READINGS: 1.0}


def bucket_growth(before: Readings, after: Readings) -> dict[str, float]:
    """The series of how many requests each bucket got between two readings."""
    return {
        f"{key}|{kind}": value - before.get(key, {}).get(kind, 0.0)
        for key, kinds in after.items()
        for kind, value in kinds.items()
        if kind not in _SUMS
    }


def upper_bound_s(buckets: Sequence[tuple[float, float]], quantile: float) -> float | None:
    """The bound of the bucket in which a quantile lies, seconds; ``None`` above the last bound, or without requests.

    :param buckets: by upper bound, how many requests were at or below it.
    """
    ordered = sorted(buckets)
    total = ordered[-1][1] if ordered else 0.0
    within = (bound for bound, count in ordered if count >= quantile * total > 0 and math.isfinite(bound))
    return next(within, None)
