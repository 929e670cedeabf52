"""Figures of a service behind an address, from the record of its run."""

from __future__ import annotations

import math

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import milliseconds, percent
from latfix.profilers.evidence.outside.outside_view import Serving
from latfix.profilers.evidence.outside.server_account import PARTS, ServerAccount, server_account
from latfix.profilers.evidence.outside.service_process import (
    CPU,
    MAJOR_FAULTS,
    METRICS,
    MINOR_FAULTS,
    PREEMPTIONS,
    RESIDENT,
    RUN_QUEUE,
    SURE,
    SWITCHES,
    THROTTLED,
    Counter,
    series_names,
)
from latfix.profilers.evidence.outside.serving_processes import came_while_others_idled
from latfix.profilers.evidence.outside.standstills import streamed_parts
from latfix.profilers.services.stage_metrics import upper_bound_s
from latfix.queueing.inference.batch_inference import Rule
from latfix.results.diagnosis import (
    Goodput,
    InferredBatches,
    LatencyPart,
    ProcessFigures,
    ServiceFigures,
    ServingProcess,
    StreamFigures,
)
from latfix.run_record.run_record import RunRecord, Throughput
from latfix.run_record.schema import OWN_UTIL
from latfix.stages import Status
from latfix.statistics.latency_summary import summarize_ms

#: A process is slower if its requests are slow so many times as often as those of the others.
_SLOWER = 2.0


def service_figures(record: RunRecord, serving: Serving, tail_ns: float, served: Ints) -> ServiceFigures:
    """Figures of the service besides its latency.

    :param serving: servers behind its queue, and how they gather batches, if known.
    :param tail_ns: latency from which a request is one of the tail.
    :param served: ``(n,)`` the process of each request if it is known of nearly all; else empty.
    """
    rows, workers, own = record.requests, set(record.meta.http.get("workers", ())), set(served[served > 0].tolist())
    unused = (
        len(workers - own) if own and own <= workers else 0
    )  # else those that listen may be helpers of those that serve
    several = len(own) + unused > 1
    told = server_account(record)
    fresh = rows["new_connection"] > 0
    took = np.maximum(rows["prepare_ns"] - rows["send_ns"], 0)[fresh & (rows["send_ns"] > 0)]
    return ServiceFigures(
        connections=int(np.count_nonzero(fresh)),
        connect_ms=summarize_ms(took) if len(took) else None,
        servers=serving.servers or None,
        batches=None if serving.rule is None else _batches(serving.rule),
        streams=_streams(record),
        goodput=_goodput(record),
        process=_process(record),
        metrics=_metrics(record),
        parts=_parts(record, told, tail_ns),
        parts_known=told.known_as if told.parts else "",
        processes=_processes(record, tail_ns, served) if several else (),
        unused=unused,
        beside_idle=_beside_idle(record, tail_ns, served, unused > 0) if several else None,
    )


def _processes(record: RunRecord, tail_ns: float, served: Ints) -> tuple[ServingProcess, ...]:
    rows, ok = record.requests, record.measured & (record.requests["status"] == Status.OK)
    return tuple(
        ServingProcess(
            pid=pid,
            connections=int(np.count_nonzero((served == pid) & (rows["new_connection"] > 0))),
            requests=int(np.count_nonzero(own)),
            slow=int(np.count_nonzero(rows["latency_ns"][own] >= tail_ns)),
            latency_ms=summarize_ms(rows["latency_ns"][own]),
        )
        for pid in np.unique(served[served > 0]).tolist()
        if (own := ok & (served == pid)).any()
    )


def _beside_idle(record: RunRecord, tail_ns: float, served: Ints, unused: bool) -> float | None:
    slow = record.measured & (record.requests["status"] == Status.OK) & (record.requests["latency_ns"] >= tail_ns)
    beside = came_while_others_idled(record.requests, served, unused)
    return float(np.mean(beside[slow])) if slow.any() else None


def slower_process(service: ServiceFigures) -> str:
    """A note if one of several processes has most of the slow requests; empty if none does."""
    requests, slow = (sum(getattr(one, name) for one in service.processes) for name in ("requests", "slow"))
    for one in service.processes:
        others, share = requests - one.requests, one.requests / requests
        beyond = (one.slow - slow * share) / math.sqrt(max(slow * share * (1 - share), 1e-9))
        if beyond < SURE or not others or one.slow / one.requests < _SLOWER * (slow - one.slow) / others:
            continue
        rest = [float(each.latency_ms["p99"]) for each in service.processes if each is not one]
        return (
            f"Process {one.pid}, 1 of {len(service.processes)} that serve, had {percent(share)} of the requests and "
            f"{percent(one.slow / slow)} of the slow ones: its p99 is {milliseconds(one.latency_ms['p99'])}, that "
            f"of the others {milliseconds(min(rest))} to {milliseconds(max(rest))}."
        )
    return ""


def _batches(rule: Rule) -> InferredBatches:
    return InferredBatches(
        timer=rule.timer, window_ms=rule.window_ns / 1e6, limit=rule.limit, explained_share=1 - rule.wrong
    )


def _parts(record: RunRecord, told: ServerAccount, tail_ns: float) -> tuple[LatencyPart, ...]:
    """The mean latency of slow requests and of the others, divided by what the service reports."""
    rows = record.requests
    ok = record.measured & (rows["status"] == Status.OK)
    slow = ok & (rows["latency_ns"] >= tail_ns)
    if not told.parts or not slow.any():
        return ()
    groups = (slow, ok & ~slow if (ok & ~slow).any() else slow)
    spent = {"client": rows["dispatch_ns"] + rows["prepare_ns"]}
    spent |= {part: told.parts[part] for part in PARTS if part in told.parts}
    spent["other"] = rows["latency_ns"] - sum(spent.values())
    bounds = {part: upper_bound_s(buckets, 0.99) for part, buckets in told.buckets_s.items()}
    means = {part: [float(taken[group].mean()) / 1e6 for group in groups] for part, taken in spent.items()}
    return tuple(
        LatencyPart(
            part=part,
            slow_ms=means[part][0],
            typical_ms=means[part][1],
            source=told.sources.get(part, ""),
            p99_ms=None if (bound := bounds.get(part)) is None else 1e3 * bound,
        )
        for part in spent
    )


def _seconds(record: RunRecord) -> float:
    whole = Throughput()
    whole.add(record.requests)
    return max(whole.seconds, 1e-9)


def _streams(record: RunRecord) -> StreamFigures | None:
    rows = record.requests
    ok = record.measured & (rows["status"] == Status.OK) & (rows["chunks"] > 0)
    if not ok.any():
        return None
    gaps = [np.diff(times) for times in streamed_parts(record.events).values()]
    tokens = int(rows["output_tokens"][ok].sum())
    return StreamFigures(
        requests=int(np.count_nonzero(ok)),
        first_token_ms=summarize_ms(rows["first_token_ns"][ok]),
        gap_ms=summarize_ms(np.concatenate([np.zeros(0, np.int64), *gaps])),
        output_tokens=tokens,
        output_tokens_per_s=tokens / _seconds(record),
    )


def _goodput(record: RunRecord) -> Goodput | None:
    limits = {name: float(value) for name, value in record.meta.http.get("slo", {}).items()}
    if not limits:
        return None
    rows = record.requests
    good = record.measured & (rows["status"] == Status.OK)
    streamed = rows["chunks"] > 0
    tokens = np.maximum(np.maximum(rows["output_tokens"], rows["chunks"]) - 1, 1)
    parts = streamed_parts(record.events)
    longest_of = {request: int(np.diff(times).max(initial=0)) for request, times in parts.items()}
    longest = np.array([longest_of.get(request, 0) for request in rows["index"].tolist()], dtype=np.int64)
    values = {
        "latency": rows["latency_ns"] / 1e6,
        "ttft": np.where(streamed, rows["first_token_ns"], rows["latency_ns"] - rows["finish_ns"]) / 1e6,
        "gap": longest / 1e6,
        "tpot": np.where(streamed, (rows["latency_ns"] - rows["first_token_ns"]) / tokens, 0.0) / 1e6,
    }
    for name, limit in limits.items():
        good &= values[name] < limit
    arrived = max(int(np.count_nonzero(record.measured)), 1)
    met = int(np.count_nonzero(good))
    return Goodput(limits_ms=limits, rps=met / _seconds(record), share=met / arrived)


def _process(record: RunRecord) -> ProcessFigures | None:
    cpu, pid = Counter.of(record.samples, CPU), record.meta.http.get("pid")
    if not cpu.known or pid is None:
        return None
    span = max(float(cpu.at_ns[-1] - cpu.at_ns[0]), 1.0)
    throttled, waiting = (Counter.of(record.samples, name) for name in (THROTTLED, RUN_QUEUE))
    minor, major, voluntary, involuntary = (
        int(Counter.of(record.samples, name).total) for name in (MINOR_FAULTS, MAJOR_FAULTS, SWITCHES, PREEMPTIONS)
    )
    gpu = Counter.of(record.samples, OWN_UTIL).value
    resident = Counter.of(record.samples, RESIDENT).value
    return ProcessFigures(
        pid=int(pid),
        cpu_cores=cpu.total / span,
        waiting_cores=waiting.total / span,
        throttled_ms=throttled.total / 1e6 if throttled.known else None,
        minor_faults=minor,
        major_faults=major,
        voluntary_switches=voluntary,
        involuntary_switches=involuntary,
        resident_bytes=int(resident[-1]) if len(resident) else 0,
        gpu_util=float(gpu.mean()) if len(gpu) else None,
    )


def _metrics(record: RunRecord) -> dict[str, dict[str, float]]:
    result = {}
    for name in series_names(record.samples, METRICS):
        values = Counter.of(record.samples, name).value
        if len(values) and math.isfinite(float(values[-1])):
            ends = {"before": float(values[0]), "after": float(values[-1]), "most": float(values.max())}
            result[name.removeprefix(METRICS)] = ends
    return result
