"""Each export is opened by its tool's own parser, or held against its schema, for every kind of run."""

from __future__ import annotations

import importlib
import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from hypothesis import given
from hypothesis import strategies as st

from latfix.lower_bound import AtLeast
from latfix.profilers.chunked.record_chunks import WholeRecord
from latfix.profilers.code_lines.slow_lines import stack_times
from latfix.profilers.evidence.units import gather
from latfix.reports.ci.ci_summary import Summary
from latfix.reports.ci.gitlab_code_quality import code_quality
from latfix.reports.ci.markdown import plain_markdown
from latfix.reports.comparison_rows import gate_rows
from latfix.reports.exports.chrome_trace import chrome_trace
from latfix.reports.exports.hdr_log import encoded, hdr_log, places_of
from latfix.reports.exports.openmetrics import openmetrics
from latfix.reports.exports.otlp_metrics import otlp_metrics
from latfix.reports.exports.otlp_spans import otlp_lines
from latfix.reports.exports.speedscope import speedscope
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE
from tests.records import zeros
from tests.reports.conftest import HOSTILE, Session, make_record

MS = 1_000_000


def with_batches(record: RunRecord) -> RunRecord:
    """Two workers that take turns, a collection, a counter; some batches overlap those before."""
    rows = record.requests
    n = len(rows["index"])
    batches = zeros(BATCH_DTYPE, n)
    batches["batch_id"], batches["worker"], batches["size"] = rows["batch_id"], rows["batch_id"] % 2, np.ones(n, int)
    begun = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"]
    batches["open_ns"], batches["close_ns"] = begun, begun + rows["queue_ns"]
    batches["collated_ns"] = batches["h2d_end_ns"] = batches["close_ns"] + rows["batch_ns"]
    batches["compute_end_ns"] = batches["d2h_end_ns"] = batches["h2d_end_ns"] + rows["compute_ns"]
    batches["finish_end_ns"] = batches["d2h_end_ns"] + rows["finish_ns"]
    details = np.array([{"generation": 2, HOSTILE: HOSTILE, "deep": {"a": [HOSTILE]}}], dtype=object)
    events = {"t_ns": np.array([5 * MS]), "duration_ns": np.array([MS]), "kind": np.array(["gc"], dtype=object)}
    events |= {"thread": np.array([7]), "request": np.array([-1]), "batch_id": np.array([0]), "detail": details}
    samples = {"t_ns": np.array([-MS, MS]), "series": np.array(["host.cpu", HOSTILE], dtype=object)}
    samples["value"] = np.array([1.5, np.nan])
    meta = record.meta.updated(threads={"worker": [7]}, worker_devices=["cpu", "cpu"])
    return replace(record, batches=batches, events=events, samples=samples, meta=meta)


@pytest.fixture
def source(session: Session) -> WholeRecord:
    """Every kind of run."""
    return WholeRecord(with_batches(session[0]))


def whole(text: str) -> str:
    """The text, which nothing in a terminal obeys."""
    assert not set(text) & {chr(k) for k in (*range(9), *range(11, 32), *range(127, 160), 0x202E)}
    text.encode()
    return text


EVENT = {
    "oneOf": [
        {
            "properties": {
                "ph": {"const": "M"},
                "name": {"enum": ["process_name", "process_sort_index", "thread_name"]},
            },
            "required": ["ph", "name", "pid", "args"],
        },
        {
            "properties": {"ph": {"enum": ["b", "e"]}, "ts": {"minimum": 0}, "id": {"type": "string"}},
            "required": ["ph", "name", "cat", "id", "pid", "tid", "ts"],
        },
        {
            "properties": {"ph": {"const": "X"}, "ts": {"minimum": 0}, "dur": {"minimum": 0}},
            "required": ["ph", "name", "pid", "tid", "ts", "dur"],
        },
        {
            "properties": {"ph": {"const": "C"}, "ts": {"minimum": 0}},
            "required": ["ph", "name", "pid", "ts", "args"],
        },
    ]
}


def test_trace_events_are_whole_and_nested(source: WholeRecord) -> None:
    document = json.loads(whole("".join(chrome_trace(source))))
    events = document["traceEvents"]
    check = jsonschema.Draft202012Validator(EVENT)
    open_slices: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for event in events[:: max(len(events) // 2000, 1)]:
        check.validate(event)
    for event in events:
        if event["ph"] == "b":
            open_slices[event["id"]].append((event["name"], event["ts"]))
        if event["ph"] == "e":
            name, begun = open_slices[event["id"]].pop()
            assert name == event["name"] and event["ts"] >= begun
    assert not any(open_slices.values())
    rows = source.stretch(0, len(source)).requests
    spans = [event for event in events if event["ph"] == "b" and "args" in event]
    assert len(spans) == len(open_slices) == len(source)
    assert [span["args"]["latency_ms"] for span in spans] == (rows["latency_ns"] / 1e6).tolist()
    assert [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 3] == ["gc"]
    assert [event["args"] for event in events if event["ph"] == "C"] == [{"value": 1.5}], "NaN is no JSON"


def test_spans_are_opened_by_opentelemetry(source: WholeRecord) -> None:
    trace = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="not installed")
    json_format = importlib.import_module("google.protobuf.json_format")
    spans: list[Any] = []
    for line in otlp_lines(source):
        found = json_format.Parse(whole(line), trace.ExportTraceServiceRequest())
        spans += found.resource_spans[0].scope_spans[0].spans
    record = source.stretch(0, len(source))
    kept = record.measured
    roots = [span for span in spans if not span.parent_span_id]
    lengths = [span.end_time_unix_nano - span.start_time_unix_nano for span in roots]
    assert lengths == record.requests["latency_ns"][kept].tolist()
    assert [span.status.code == 2 for span in roots] == (record.requests["status"][kept] != 0).tolist()
    assert len({(span.trace_id, span.span_id) for span in spans}) == len(spans)
    by_trace = Counter[bytes]()
    for span in spans:
        if span.parent_span_id:
            by_trace[span.trace_id] += span.end_time_unix_nano - span.start_time_unix_nano
    assert [by_trace[span.trace_id] for span in roots] == lengths, "stages sum to the latency"


def test_metrics_are_opened_by_prometheus(session: Session) -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason="not installed")
    record, diagnosis = session
    families = {
        family.name: family
        for family in parser.text_string_to_metric_families(
            whole("".join(openmetrics(diagnosis, WholeRecord(record))))
        )
    }
    counts = {each.labels["status"]: each.value for each in families["latfix_requests"].samples}
    assert counts == record.counts()
    buckets = [each for each in families["latfix_request_latency_seconds"].samples if each.name.endswith("_bucket")]
    assert buckets[-1].labels["le"] == "+Inf" and buckets[-1].value == sum(counts.values())
    exact = [int(np.count_nonzero(record.latencies_ns() <= float(b.labels["le"]) * 1e9)) for b in buckets[:-1]]
    assert [b.value for b in buckets[:-1]] == exact
    window = whole("".join(openmetrics(diagnosis, None, window_s=60.0)))
    recent = {family.name: family for family in parser.text_string_to_metric_families(window)}
    assert {each.labels["status"]: each.value for each in recent["latfix_window_requests"].samples} == counts
    assert recent["latfix_window_requests"].type == "gauge" and recent["latfix_window_seconds"].samples[0].value == 60
    causes = families["latfix_cause_tail_seconds"].samples if diagnosis.causes else []
    assert [each.value for each in causes] == [each.tail_ms / 1e3 for each in diagnosis.causes]


def test_a_lost_percentile_is_infinite_so_that_an_alert_fires(ordinary: Session) -> None:
    record, diagnosis = ordinary
    lost = replace(diagnosis, latency_ms={**diagnosis.latency_ms, "p99": AtLeast(300.0)})
    for window_s in (None, 60.0):
        lines = "".join(openmetrics(lost, None, window_s=window_s)).splitlines()
        (line,) = [line for line in lines if line.startswith("latfix_latency_") and 'figure="p99"' in line]
        assert line.endswith("} +Inf")
    assert "Inf" not in otlp_metrics(lost, WholeRecord(record)), "JSON has no such number"


def test_a_gate_that_is_given_twice_is_one_sample(ordinary: Session) -> None:
    """Prometheus refuses the whole document if a sample is in it twice."""
    gate = {"gate": "p99<200ms", "value": 300.0, "passed": False, "reason": ""}
    text = "".join(openmetrics(replace(ordinary[1], gates=_gates((gate, gate))), None))
    assert text.count("\nlatfix_gate_passed{") == 1


def test_the_log_is_opened_by_hdrhistogram(source: WholeRecord, tmp_path: Path) -> None:
    log = pytest.importorskip("hdrh.log", reason="not installed")
    histogram = importlib.import_module("hdrh.histogram").HdrHistogram(1, 3600 * 10**9, 3)
    (tmp_path / "latency.hlog").write_text(whole("".join(hdr_log(source))))
    reader = log.HistogramLogReader(str(tmp_path / "latency.hlog"), histogram)
    tagged, plain = 0, histogram
    while (one := reader.get_next_interval_histogram()) is not None:
        if one.get_tag():
            tagged += one.get_total_count()
        else:
            plain.add(one)
    reader.close()
    record = source.stretch(0, len(source))
    values = np.minimum(record.latencies_ns(), 3600 * 10**9)
    assert (plain.get_total_count(), tagged) == (len(values), sum(record.counts().values()) - len(values))
    order = np.sort(values)
    for percentile in (50.0, 99.0, 100.0) if len(values) else ():
        rank = round(len(values) * percentile / 100)  # the package rounds
        near = order[max(rank - 2, 0)], order[min(rank, len(values) - 1)]
        assert near[0] * 0.998 - 1 <= plain.get_value_at_percentile(percentile) <= near[1] * 1.002 + 1


@given(st.lists(st.integers(min_value=0, max_value=2**45), min_size=1, max_size=50))
def test_every_count_is_where_hdrhistogram_has_it(values: list[int]) -> None:
    hdrh = pytest.importorskip("hdrh.histogram", reason="not installed")
    histogram = hdrh.HdrHistogram.decode(encoded(np.bincount(places_of(np.array(values)))))
    assert histogram.get_total_count() == len(values)
    within = [min(value, 3600 * 10**9) for value in values]
    assert all(histogram.get_count_at_value(value) >= 1 for value in within)
    assert histogram.get_max_value() == pytest.approx(max(within), rel=0.001, abs=1)


PROFILE = {
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "shared": {"properties": {"frames": {"items": {"required": ["name"]}}}, "required": ["frames"]},
        "profiles": {
            "items": {
                "required": ["type", "name", "unit", "startValue", "endValue"],
                "oneOf": [
                    {"properties": {"type": {"const": "sampled"}}, "required": ["samples", "weights"]},
                    {"properties": {"type": {"const": "evented"}}, "required": ["events"]},
                ],
            }
        },
    },
}


def test_profiles_nest_and_never_go_back(source: WholeRecord) -> None:
    document = json.loads(whole("".join(speedscope(source))))
    jsonschema.Draft202012Validator(PROFILE).validate(document)
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    everything, tail, *workers = document["profiles"]
    assert tail["endValue"] >= everything["endValue"] == sum(everything["weights"])
    assert all(frames[stack[0]] == "request" for stack in tail["samples"])
    for profile in workers:
        stack, now = [], 0
        for event in profile["events"]:
            assert now <= event["at"] <= profile["endValue"]
            now = event["at"]
            if event["type"] == "O":
                stack.append(event["frame"])
            else:
                assert stack.pop() == event["frame"]
        assert not stack
    assert len(workers) == len(np.unique(source.stretch(0, len(source)).batches["worker"]))


def test_the_profile_has_the_python_that_was_seen() -> None:
    # GIVEN samples of a worker every 20 ms: in batches in user code, and once in an unknown stack
    record, look = with_batches(make_record(500)), 20 * MS
    at = np.arange(look, int(record.batches["finish_end_ns"].max()), look)
    numbers = np.where(np.arange(len(at)) % 10 == 9, 77.0, 0.0)
    series = np.full(len(at), "stack.worker.0", dtype=object)
    stack = (f"/w/m.py:9 {HOSTILE}", "/w/m.py:3 forward")
    record = replace(
        record,
        samples={"t_ns": at, "series": series, "value": numbers},
        meta=record.meta.updated(stacks=[stack], workload_folder="/w"),
    )
    # WHEN
    times = stack_times(gather(record), record.meta.stacks)
    document = json.loads(whole("".join(speedscope(WholeRecord(record), times))))
    jsonschema.Draft202012Validator(PROFILE).validate(document)
    # THEN each look stands for the time since the one before, callers first, and gaps are empty
    profiles = {profile["name"]: profile for profile in document["profiles"]}
    names = [frame["name"] for frame in document["shared"]["frames"]]
    over_time = profiles["Python of worker.0 over time"]
    assert over_time["endValue"] == sum(over_time["weights"]) <= at[-1]
    seen = [w for s, w in zip(over_time["samples"], over_time["weights"], strict=True) if s]
    assert set(seen) == {look} and len(seen) == np.count_nonzero(numbers == 0)
    assert {names[s[0]] for s in over_time["samples"] if s} == {"m.py:3 forward"}
    assert {"Python of slow compute", "Python of typical compute"} <= set(profiles)


def _without_defaults(known: Any, given: Any) -> Any:
    """What Grafana's types keep of a document, without what they add to it."""
    if isinstance(known, dict) and isinstance(given, dict):
        return {key: _without_defaults(value, given[key]) for key, value in known.items() if key in given}
    if isinstance(known, list) and isinstance(given, list):
        return [_without_defaults(*pair) for pair in zip(known, given, strict=True)]
    return known


def test_the_dashboard_queries_exported_metrics(session: Session) -> None:
    """Grafana's own types read all of it; unique panels on a grid of 24 columns do not overlap."""
    _, diagnosis = session
    text = "".join(openmetrics(diagnosis, None, window_s=60.0))
    dashboard = json.loads((Path(__file__).parents[3] / "examples" / "grafana_dashboard.json").read_text())
    register_default_plugins()
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    assert _without_defaults(known, dashboard) == dashboard
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells) and max(cells)[0] < 24
    exported = set(re.findall("^# TYPE (latfix_[a-z_]+) ", text, flags=re.MULTILINE))
    queried = {
        name for panel in panels for each in panel["targets"] for name in re.findall("latfix_[a-z_]+", each["expr"])
    }
    always = {"latfix_latency_seconds", "latfix_window_requests", "latfix_tail_excess_seconds"}
    assert always <= queried and (queried <= exported or not diagnosis.causes)


def test_a_slow_tail_shows_in_its_own_profile() -> None:
    record = with_batches(make_record(2000))
    document = json.loads("".join(speedscope(WholeRecord(record))))
    latency = record.latencies_ns()
    means = [profile["endValue"] for profile in document["profiles"][:2]]
    slow = latency[latency >= np.percentile(latency, 99, method="inverted_cdf")]
    assert means == pytest.approx([latency.mean(), slow.mean()], rel=0.02)


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_becomes_markup_in_plain_markdown(name: str, reason: str) -> None:
    gates = ({"gate": "p99<200ms", "value": 1.0, "passed": False, "reason": reason},)
    summary = Summary(command="gate", workload=name, gates=gate_rows(_gates(gates)), failure=reason)
    text = whole(plain_markdown(summary))
    tokens = importlib.import_module("markdown_it").MarkdownIt("commonmark").enable("table").parse(text)
    kinds = {child.type for token in tokens for child in token.children or ()}
    assert kinds <= {"text", "text_special", "code_inline", "strong_open", "strong_close"}
    assert not {token.type for token in tokens} & {"html_block", "code_block", "fence", "blockquote_open", "hr"}
    assert "&#" not in text.replace(name, "").replace(reason, "")


def test_gitlab_takes_findings() -> None:
    gates = [
        {"gate": "p99<200ms", "value": 300.0, "passed": False, "reason": HOSTILE},
        {"gate": "p50<20ms", "value": 30.0, "passed": None, "reason": "too few"},
        {"gate": "mean<20ms", "value": 3.0, "passed": True, "reason": ""},
    ]
    summary = Summary(command="diagnose", workload=HOSTILE, gates=gate_rows(_gates(gates)))
    found = json.loads(whole(code_quality(summary, path="w/workload.toml")))
    assert [each["severity"] for each in found] == ["major", "minor"]
    assert len({each["fingerprint"] for each in found}) == 2
    assert found[0]["location"] == {"path": "w/workload.toml", "lines": {"begin": 1}}
    again = replace(summary, gates=(*summary.gates[::-1], *summary.gates))
    assert len(json.loads(code_quality(again, path="w"))) == 2, "a gate that is given twice"
    assert {each["fingerprint"] for each in json.loads(code_quality(again, path="w"))} == {
        each["fingerprint"] for each in found
    }


def _gates(documents: Any) -> Any:
    from latfix.gates.evaluate import GateResult

    return tuple(GateResult.from_json(document) for document in documents)
