"""Stages of requests in the metrics of servers."""

from __future__ import annotations

import pytest

from latfix.profilers.evidence.outside.server_account import READINGS
from latfix.profilers.services.stage_metrics import Target, bucket_growth, read_stages, series_of, upper_bound_s

VLLM = """
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 1.5
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="m"} 3.0
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 4.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="other"} 7.0
vllm:request_queue_time_seconds_count{engine="0",model_name="other"} 1.0
vllm:time_per_output_token_seconds_sum{engine="0",model_name="m"} 9.0
vllm:time_per_output_token_seconds_count{engine="0",model_name="m"} 900.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
"""
TRITON = """
nv_inference_request_success{model="m",version="1"} 10
nv_inference_request_success{model="x",version="1"} 90
nv_inference_queue_duration_us{model="m",version="1"} 2000
nv_inference_queue_duration_us{model="x",version="1"} 5
nv_inference_compute_input_duration_us{model="m",version="1"} 100
nv_inference_compute_infer_duration_us{model="m",version="1"} 3000
nv_inference_compute_output_duration_us{model="m",version="1"} 200
"""


def test_a_models_own_series_are_told_from_the_sum_of_all() -> None:
    found = read_stages(VLLM, Target(model="m"))
    own, everyone = (found[f"stage.queue|{rank}|vllm:request_queue_time_seconds"] for rank in (0, 1))
    assert (own["sum"], own["count"], own["le=0.3"]) == (1.5e9, 4, 3)
    assert (everyone["sum"], everyone["count"]) == (8.5e9, 5)
    assert set(found) == {f"stage.queue|{rank}|vllm:request_queue_time_seconds" for rank in (0, 1)}
    assert len(read_stages(VLLM, Target())) == 1  # with no model known, only the sum


def test_counters_are_divided_by_the_counter_of_requests_and_parts_of_compute_are_one() -> None:
    found = read_stages(TRITON, Target(path="/v2/models/m/infer", model="m"))
    assert dict(found["stage.queue|0|nv_inference_queue_duration_us"]) == {"sum": 2e6, "count": 10}
    assert dict(found["stage.queue|1|nv_inference_queue_duration_us"]) == {"sum": 2.005e6, "count": 100}
    compute = found["stage.compute|0|nv_inference_compute_infer_duration_us"]
    assert dict(compute) == {"sum": 3.3e6, "count": 10}


@pytest.mark.parametrize(
    ("name", "key", "sum_ns"),
    [
        ("ray_vllm_request_prefill_time_seconds", "prefill|0", 2e9),
        ("tgi_request_queue_duration", "queue|0", 2e9),
        ("ray_serve_deployment_processing_latency_ms", "compute|0", 2e6),
        ("ranker_queue_wait_milliseconds", "queue|2", 2e6),
        ("model_inference_duration_seconds", "compute|2", 2e9),
        ("http_request_duration_seconds", "whole|2", 2e9),
    ],
)
def test_names_are_recognized(name: str, key: str, sum_ns: float) -> None:
    found = read_stages(f"{name}_sum 2\n{name}_count 4\n", Target())
    assert {one: dict(values) for one, values in found.items()} == {
        f"stage.{key}|{name}": {"sum": sum_ns, "count": 4}
    }


@pytest.mark.parametrize("name", ["queue_size", "gc_pause_seconds", "process_cpu_seconds", "request_size_bytes"])
def test_other_sums_are_no_stage(name: str) -> None:
    assert not read_stages(f"{name}_sum 2\n{name}_count 4\n", Target())
    assert not read_stages("http_request_duration_seconds_sum 2\n", Target())  # without a count


def test_a_route_with_parameters_is_that_of_a_path() -> None:
    lines = "".join(
        f'http_request_duration_seconds_{kind}{{handler="{route}"}} {value}\n'
        for kind, of in (("sum", (1, 2, 4)), ("count", (10, 20, 40)))
        for route, value in zip(("/users/{id}", "/metrics", "/users/{id}/cart"), of, strict=True)
    )
    found = read_stages(lines, Target(path="/users/17"))
    assert dict(found["stage.whole|2|http_request_duration_seconds"]) == {"sum": 1e9, "count": 10}
    assert dict(found["stage.whole|3|http_request_duration_seconds"]) == {"sum": 7e9, "count": 70}


def test_buckets_are_kept_as_growth_and_bound_a_percentile() -> None:
    before, after = (read_stages(VLLM.replace("} 3.0", f"}} {n}"), Target(model="m")) for n in (1.0, 3.0))
    growth = bucket_growth(before, after)
    assert growth["stage.queue|0|vllm:request_queue_time_seconds|le=0.3"] == 2.0
    assert growth["stage.queue|0|vllm:request_queue_time_seconds|le=inf"] == 0.0
    assert not any("le=" in name for name in series_of(after)) and series_of(after)[READINGS] == 1.0
    buckets = [(0.1, 50.0), (0.3, 98.0), (float("inf"), 100.0)]
    assert [upper_bound_s(buckets, quantile) for quantile in (0.5, 0.9, 0.99)] == [0.1, 0.3, None]
    assert upper_bound_s([], 0.5) is None
    assert upper_bound_s([(0.1, 0.0), (float("inf"), 0.0)], 0.5) is None
