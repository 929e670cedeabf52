"""Advice on a server's own settings by cause, for services that latfix does not run.

Servers are recognized by their metrics, their ``Server`` header, the recording's format, or their process's program.
Others get what holds for any. Settings have the names of the servers' documentation; latfix has not tried them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import percent
from latfix.results.diagnosis import Advice, Diagnosis

#: By server, the prefixes of its metrics, its header and the formats of its recordings.
_SIGNS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "vLLM": (("vllm:",), (), ("vllm", "vLLM")),
    "Triton": (("nv_inference_",), ("triton",), ("Triton",)),
    "TGI": (("tgi_",), (), ()),
    "SGLang": (("sglang:", "sglang_"), (), ()),
    "Ray Serve": (("ray_serve_", "serve_deployment_"), (), ()),
    "LitServe": ((), ("litserve",), ()),  # by its page /info
    "mosec": (("mosec_service_",), (), ()),
    "uvicorn": ((), ("uvicorn",), ()),
    "gunicorn": ((), ("gunicorn",), ()),
    "Python": (
        (),
        ("basehttp", "werkzeug", "waitress", "cherr", "tornado", "hypercorn", "granian", "sanic", "robyn"),
        ("what latfix.record",),
    ),
}
#: How names of programs begin that run services, or are in front of them.
_PROGRAMS: Mapping[str, str] = {
    "node": "Node",
    "java": "Java",
    "python": "Python",
    "nginx": "nginx",
    "haproxy": "HAProxy",
    "envoy": "Envoy",
}
#: Servers of the user's own Python code.
_OWN_PYTHON = ("Ray Serve", "LitServe", "mosec", "uvicorn", "gunicorn", "Python")
_ASYNC = (
    "move code that blocks the event loop into def instead of async def, or into run_in_threadpool; if it computes "
    "in Python, into another process, and collections out of requests (gc.freeze once the model is loaded)"
)
_PROFILE = "a profile of the slow requests' own code (py-spy, perf)"
_LOCK = "hold the lock for less, or use one per thread: its own model, connection or session, a larger pool"
_PROCESSES = "more processes instead of threads: Python code runs in one thread of a process at a time"
_THREADED = f"one thread ran while others waited for a lock or the interpreter's lock: {_LOCK}; or {_PROCESSES}"
_STOOD_STILL = f"in an event loop, {_ASYNC}; with threads, {_THREADED}"
#: How requests were served, as in a recording's ``served by``.
ONE_LOOP, THREADS = "an event loop", "threads"
_CORES = "cores of its own (taskset, cpuset) if other processes took them"
_THREADS = (
    f"{_CORES}; OMP_NUM_THREADS and torch.set_num_threads, so that workers times threads do not exceed the cores"
)
_COLLECTOR = "gc.collect() and gc.freeze() once the model is loaded; a higher gc.set_threshold"
_OUTSIDE = "a deadline and a pool of kept connections for the dependency"
_BEHIND = "--pid of the service behind this proxy shows what that did meanwhile"
_NODE_LOOP = "code that computes in worker_threads, and no …Sync call while it serves; --cpu-prof shows which it is"
_JAVA_LOOP = "no blocking call on the event loop (Netty, Vert.x executeBlocking, Schedulers.boundedElastic)"
_SPLIT_PROMPTS = (
    "--max-num-batched-tokens lower, with --enable-chunked-prefill: a prompt then shares steps with streams"
)
_CHUNKS = "--chunked-prefill-size lower, with --enable-mixed-chunk: a prompt then shares steps with streams"
_REPLICAS = "num_replicas higher (or autoscaling_config with a lower target_ongoing_requests)"
_WORKERS = "workers_per_device of LitServer higher, while cores or device memory last"
_NUM = "num in append_worker higher for the stage that takes longest"
_MORE_AT_ONCE: Mapping[str, str] = {
    "SGLang": "--max-running-requests higher while --mem-fraction-static leaves room, else --dp-size",
    "Ray Serve": f"{_REPLICAS}; @serve.batch where the model computes several at once",
    "LitServe": f"{_WORKERS}; max_batch_size of LitAPI where the model computes several at once",
    "mosec": f"{_NUM}; max_batch_size where the model computes several at once",
    "vLLM": "--max-num-seqs higher while its cache has room, else --data-parallel-size",
    "Triton": "instance_group count higher; a timeout in default_queue_policy, so that late requests do not wait",
    "TGI": "--max-batch-total-tokens higher while memory has room, else another replica",
    "uvicorn": "--workers higher, each loads the model; if the process is idle meanwhile, more threads (AnyIO's "
    "limiter, 40 by default) or connections; --limit-concurrency answers 503 instead of a long wait",
    "gunicorn": "--workers or --threads higher",
    "Node": "more processes (node:cluster, pm2 -i); if they are idle meanwhile, larger pools of connections",
    "HAProxy": "maxconn of the server's line higher while the service has room, else another server",
    "Java": "more threads for requests, and connections for what they wait for (server.tomcat.threads.max, "
    "maximumPoolSize of HikariCP), up to what the cores can compute",
}

#: By cause, the change for each server, under "Python" for all of that kind, and under "" for any server.
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "traffic.burst": _MORE_AT_ONCE,
    "service.queue": _MORE_AT_ONCE,
    "traffic.overload": {
        "SGLang": "--max-queued-requests to shed; another replica (--dp-size)",
        "Ray Serve": "max_queued_requests to shed; num_replicas higher",
        "LitServe": f"timeout of LitServer lower to shed; {_WORKERS}",
        "mosec": f"--capacity lower to shed; {_NUM}",
        "vLLM": "another replica (--data-parallel-size): the load exceeds the capacity of one",
        "Triton": "max_queue_size in default_queue_policy to shed; instance_group count, or another server",
        "TGI": "--max-concurrent-requests lower to shed; another replica",
        "uvicorn": "--limit-concurrency to shed; --workers, or another machine",
        "gunicorn": "--workers, or another machine; --backlog lower to shed",
    },
    "batching.prefill": {
        "SGLang": _CHUNKS,
        "vLLM": _SPLIT_PROMPTS,
        "TGI": "--max-batch-prefill-tokens lower; --waiting-served-ratio higher",
    },
    "batching.size": {
        "SGLang": f"--max-running-requests lower; {_CHUNKS}",
        "Ray Serve": "max_batch_size of @serve.batch lower",
        "LitServe": "max_batch_size of LitAPI lower",
        "mosec": "max_batch_size in append_worker lower",
        "vLLM": f"--max-num-seqs lower; {_SPLIT_PROMPTS}",
        "Triton": "max_batch_size or preferred_batch_size lower",
        "TGI": "--max-batch-size lower",
        "": "a lower limit of the service's batches, if a full one takes about as long as its members one by one",
    },
    "batching.window": {
        "Ray Serve": "batch_wait_timeout_s of @serve.batch lower",
        "LitServe": "batch_timeout of LitAPI lower",
        "mosec": "max_wait_time in append_worker lower",
        "Triton": "dynamic_batching max_queue_delay_microseconds lower",
        "": "a shorter timer of the service's batches, or none: the next begins when the model is free",
    },
    "input.size": {
        "SGLang": "long prompts to a replica of their own; --schedule-policy lpm where prompts begin alike",
        "vLLM": "--enable-prefix-caching where prompts begin alike; long prompts to a replica of their own",
        "Triton": "long inputs to a model of their own, or ragged batches (allow_ragged_batch)",
    },
    "stall.shared": {
        "SGLang": _CHUNKS,
        "Ray Serve": _STOOD_STILL,
        "LitServe": _STOOD_STILL,
        "vLLM": _SPLIT_PROMPTS,
        "uvicorn": _STOOD_STILL,
        "Python": _STOOD_STILL,
        "Node": _NODE_LOOP,
        "Java": _JAVA_LOOP,
    },
    "service.loop": {
        "Python": _ASYNC,
        "Node": f"{_NODE_LOOP}; a long collection looks the same (--trace-gc)",
        "Java": _JAVA_LOOP,
    },
    "service.lock": {"": _LOCK, "Java": f"{_LOCK}; jstack shows who holds it"},
    "service.compute": {
        "": "a profile of the slow requests' own code",
        "Python": _PROFILE,
        "Node": f"{_NODE_LOOP}; a long collection looks the same (--trace-gc)",
        "Java": "a profile of the slow requests' own code (async-profiler, JFR)",
    },
    "python.gil": {
        "Ray Serve": f"num_replicas higher: {_PROCESSES}",
        "LitServe": f"workers_per_device higher: {_PROCESSES}",
        "mosec": f"num in append_worker higher: {_PROCESSES}",
        "uvicorn": f"--workers higher: {_PROCESSES}",
        "gunicorn": f"--workers higher: {_PROCESSES}",
        "Python": _PROCESSES,
    },
    "cold.start": {
        "Triton": "model_warmup in config.pbtxt",
        "": "warm-up requests before the service reports that it is ready",
    },
    "cold.compile": {
        "Triton": "model_warmup in config.pbtxt",
        "": "warm-up requests of all shapes before the service reports that it is ready",
    },
    "python.gc": {
        "Python": _COLLECTOR,
        "Node": "less garbage in old objects; --max-semi-space-size and --max-old-space-size higher (--trace-gc)",
        "Java": "-XX:+UseZGC or -XX:+UseShenandoahGC, or with G1 a lower -XX:MaxGCPauseMillis; a larger -Xmx "
        "(-Xlog:gc shows each pause)",
    },
    "host.contention": {
        "Ray Serve": "num_cpus in ray_actor_options as many as each replica uses; OMP_NUM_THREADS the same",
        "vLLM": "cores of its own for the engine and the API server; OMP_NUM_THREADS lower",
        "Python": _THREADS,
        "Java": f"{_CORES}; -XX:ActiveProcessorCount and -XX:ParallelGCThreads no more than them",
        "": f"{_CORES}; no more busy threads or workers than cores",
    },
    "host.throttle": {"": "a higher CPU limit of the container, or none; threads no more than the limit"},
    "network.connect": {
        "uvicorn": "--timeout-keep-alive longer than clients pause",
        "gunicorn": "--keep-alive longer than clients pause",
        "Node": "server.keepAliveTimeout (5 s by default) longer than clients pause",
        "": "connections kept alive, by the client and by proxies",
    },
    "network.delayed_ack": {
        "uvicorn": "uvloop: with --workers, asyncio does not set TCP_NODELAY",
        "Python": "TCP_NODELAY: disable_nagle_algorithm = True in the handler of http.server or werkzeug; or head "
        "and body of an answer in one write",
        "Java": "TCP_NODELAY: -Dsun.net.httpserver.nodelay=true for Java's HttpServer",
        "": "TCP_NODELAY for the service's connections, or an answer in one write",
    },
    "external.dependency": {
        **dict.fromkeys(("nginx", "HAProxy", "Envoy"), _BEHIND),
        "Python": f"{_OUTSIDE}; latfix.span names it",
        "": _OUTSIDE,
    },
}
#: For each server, how requests get to a free process, if they wait in one while another is idle; and for all.
_DISTRIBUTED: Mapping[str, str] = {
    "gunicorn": "--worker-connections lower, so that a process with many connections leaves new ones to others, and "
    "--keep-alive lower; ",
    "uvicorn": "--timeout-keep-alive lower, so that idle connections are distributed again; ",
    "Node": "server.maxRequestsPerSocket, after which a connection closes and is distributed again; ",
}
_PROXY = "a proxy that gives each request to the process with the fewest (nginx least_conn, HAProxy leastconn)"
_TRAFFIC = ("traffic.burst", "traffic.overload")
#: Least share of the slow requests, and of their excess that is waiting for others.
_BESIDE_IDLE, _WAITED = 0.5, 0.25
#: Metrics that grow only if a cache is too small, and the advice for that.
_PREEMPTIONS: Mapping[str, str] = {
    "vllm:num_preemptions": "--gpu-memory-utilization higher or --max-num-seqs lower",
    "sglang:num_retracted_requests_total": "--mem-fraction-static higher or --max-running-requests lower",
}
_TOO_SMALL = "the cache is too small, requests are recomputed"


def with_advice(result: Diagnosis, header: str = "", program: str = "") -> Diagnosis:
    """A diagnosis with advice for its server, if that is known; latfix's own replays have fixes instead.

    :param header: ``Server`` of its answers.
    :param program: of its process, such as ``node``.
    """
    metrics = {} if result.service is None else result.service.metrics
    read = {} if result.source is None else result.source.read
    server, told_by = _server(metrics, header, str(read.get("format", "")))
    if not server and program:
        known_as = (name for prefix, name in _PROGRAMS.items() if program.startswith(prefix))
        server = next(known_as, program)
        told_by = "" if server == program else f"its program {program}"
    if not server:
        return result
    causes = [cause for cause in result.causes if cause.named and cause.cause != UNEXPLAINED]
    advice = [
        Advice(server=server, told_by=told_by, cause=cause.cause, change=change, evidence=cause.evidence)
        for cause in causes
        if (change := _change(cause.cause, server, str(read.get("served by", ""))))
    ]
    waits = {cause.cause: cause.tail_ms if cause.cause in _TRAFFIC else cause.propagated_ms for cause in causes}
    beside = (result.service.beside_idle if result.service else None) or 0.0
    if waits and beside >= _BESIDE_IDLE and sum(waits.values()) >= _WAITED * result.excess_ms:
        evidence = (
            f"{percent(beside)} of the slow requests came to a process that had others while another one had none: a "
            "connection stays with the process that accepted it"
        )
        cause, change = max(waits, key=lambda each: waits[each]), _DISTRIBUTED.get(server, "") + _PROXY
        change = f"{change}: {evidence}"
        advice.insert(0, Advice(server=server, told_by=told_by, cause=cause, change=change, evidence=f"{evidence}."))
    for name, values in metrics.items():
        grown = values["after"] - values["before"]
        known = next((each for each in _PREEMPTIONS if name.startswith(each)), "")
        if known and grown > 0:
            change, evidence = f"{_PREEMPTIONS[known]}: {_TOO_SMALL}", f"{name} grew by {grown:g}."
            advice.append(Advice(server=server, told_by=told_by, cause=known, change=change, evidence=evidence))
    return replace(result, advice=tuple(advice))


def _server(metrics: Mapping[str, Any], header: str, format_: str) -> tuple[str, str]:
    for server, (names, headers, formats) in _SIGNS.items():
        metric = next((name for name in metrics if name.startswith(names)), "") if names else ""
        if metric:
            return server, f"its metric {metric}"
        if headers and header.lower().startswith(headers):
            return server, f"its header Server: {header}"
        if formats and format_.startswith(formats):
            return server, f"the recording: {format_}"
    return "", ""


def _change(cause: str, server: str, served_by: str) -> str:
    if cause == "stall.shared" and served_by:
        return {ONE_LOOP: _ASYNC, THREADS: _THREADED}[served_by]
    known = _SETTINGS.get("external.dependency" if cause.startswith("dependency.") else cause, {})
    language = "Python" if server in _OWN_PYTHON else ""
    return known.get(server) or known.get(language) or known.get("", "")
