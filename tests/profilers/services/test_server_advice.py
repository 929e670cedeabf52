"""Advice on a server's own settings: only for known servers and named causes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from latfix.cause_catalogue import CATALOGUE
from latfix.profilers.services.server_advice import _PROGRAMS, _SETTINGS, _SIGNS, ONE_LOOP, THREADS, with_advice
from latfix.results.diagnosis import CauseSummary, Diagnosis, ServiceFigures, Source
from tests.records import cause_summary

#: Causes that exist only in logs of requests.
_OF_LOGS = {"batching.prefill", "stall.shared"}


def _cause(cause: str, *, named: bool = True) -> CauseSummary:
    return cause_summary(cause, 1.0, tail_share=0.5, ci95_ms=(0.5, 1.5), named=named, evidence="seen.")


def _found(*causes: CauseSummary, format_: str = "", metrics: Any = None) -> Diagnosis:
    result = Diagnosis.from_json(
        {"schema": Diagnosis.SCHEMA, "workload": "w", "device": "", "verdict": "", "sentence": ""}
    )
    service = ServiceFigures(connections=1, connect_ms=None, servers=None, metrics=metrics or {})
    source = Source(kind="requests", path="p", read={"format": format_} if format_ else {})
    return replace(result, causes=causes, service=service, source=source)


@pytest.mark.parametrize(
    ("signs", "server"),
    [
        ({"metrics": {"vllm:num_requests_running": {"before": 0, "after": 1, "most": 1}}}, "vLLM"),
        ({"metrics": {"nv_inference_count": {"before": 0, "after": 1, "most": 1}}}, "Triton"),
        ({"metrics": {"sglang:num_running_reqs": {"before": 0, "after": 1, "most": 1}}}, "SGLang"),
        ({"metrics": {"ray_serve_deployment_queued_queries": {"before": 0, "after": 1, "most": 1}}}, "Ray Serve"),
        ({"metrics": {"mosec_service_remaining_task": {"before": 0, "after": 1, "most": 1}}}, "mosec"),
        ({"format_": "Triton trace.json"}, "Triton"),
        ({"format_": "vllm bench serve --save-detailed"}, "vLLM"),
    ],
)
def test_the_server_is_recognized_by_metrics_and_format(signs: dict[str, Any], server: str) -> None:
    (advice,) = with_advice(_found(_cause("traffic.burst"), **signs)).advice
    assert (advice.server, advice.cause, advice.evidence) == (server, "traffic.burst", "seen.")
    assert advice.told_by


def test_the_server_is_recognized_by_its_header() -> None:
    result = _found(_cause("python.gc"))
    assert with_advice(result, "uvicorn").advice[0].server == "uvicorn"
    assert with_advice(result, "LitServe").advice[0].server == "LitServe"
    assert not with_advice(result, "nginx").advice
    assert not with_advice(result).advice


@pytest.mark.parametrize(
    ("program", "server", "words"),
    [("node", "Node", "worker_threads"), ("java", "Java", "Netty"), ("python3.11", "Python", "async def")],
)
def test_a_service_s_program_tells_what_its_settings_are(program: str, server: str, words: str) -> None:
    (advice,) = with_advice(_found(_cause("service.loop")), program=program).advice
    assert (advice.server, advice.told_by) == (server, f"its program {program}") and words in advice.change


@pytest.mark.parametrize("program", ["node", "java", "envoy", "ranker"])
def test_other_languages_get_no_advice_on_python(program: str) -> None:
    causes = [_cause(cause) for cause in _SETTINGS if cause not in _OF_LOGS]
    found = with_advice(_found(*causes), program=program).advice
    assert {bool(advice.told_by) for advice in found} == {program != "ranker"}
    changes = [advice.change for advice in found]
    assert len(changes) >= 8
    of_python = ("gc.", "OMP_", "torch", "py-spy", "latfix")
    assert not [change for change in changes if any(word in change for word in of_python)]


def test_batches_of_any_known_server_get_advice() -> None:
    found = with_advice(_found(_cause("batching.window"), _cause("batching.size")), "uvicorn").advice
    assert ["shorter timer" in found[0].change, "lower limit" in found[1].change] == [True, True]


def test_only_named_causes_get_advice() -> None:
    result = _found(_cause("traffic.burst", named=False), _cause("unexplained"), format_="Triton trace.json")
    assert not with_advice(result).advice


@pytest.mark.parametrize(
    ("metric", "setting"),
    [
        ("vllm:num_preemptions_total", "--gpu-memory-utilization"),
        ("sglang:num_retracted_requests_total", "--mem-fraction-static"),
    ],
)
def test_preemptions_get_advice(metric: str, setting: str) -> None:
    metrics = {metric: {"before": 2.0, "after": 7.0, "most": 7.0}}
    (advice,) = with_advice(_found(metrics=metrics)).advice
    assert "grew by 5" in advice.evidence and setting in advice.change


@pytest.mark.parametrize(("cause", "words"), [("service.loop", "another process"), ("host.contention", "taskset")])
@pytest.mark.parametrize("header", ["uvicorn", "gunicorn", "LitServe", "TornadoServer/6.5", "waitress"])
def test_advice_also_holds_for_code_that_computes_and_for_neighbors(header: str, cause: str, words: str) -> None:
    """A thread that computes in Python blocks the loop as well; fewer threads are no help against others."""
    (advice,) = with_advice(_found(_cause(cause)), header).advice
    assert words in advice.change


def test_the_table_has_existing_causes_and_servers() -> None:
    assert _SETTINGS.keys() <= CATALOGUE.keys() | _OF_LOGS
    assert {server for row in _SETTINGS.values() for server in row} <= {"", *_SIGNS, *_PROGRAMS.values()}


@pytest.mark.parametrize(
    ("served_by", "expected", "absent"),
    [
        (ONE_LOOP, "run_in_threadpool", "interpreter"),
        (THREADS, "one thread ran", "event loop"),
        ("", "with threads", "in a log"),
    ],
)
def test_advice_on_a_shared_stall_depends_on_event_loop_or_threads(
    served_by: str, expected: str, absent: str
) -> None:
    result = _found(_cause("stall.shared"), format_="what latfix.record wrote")
    source = replace(result.source, read={**result.source.read, "served by": served_by}) if result.source else None
    (advice,) = with_advice(replace(result, source=source)).advice
    assert expected in advice.change and absent not in advice.change
