"""A plan for other servers: the files parse and match the plan; settings without a counterpart are reported."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc.model_config_pb2 import ModelConfig

from latfix.config.plan import Plan, PlannedFix
from latfix.reports.server_configs.export import TARGETS, Export, export
from latfix.reports.server_configs.translation import NO_COUNTERPART
from latfix.runners.host.process_setup import process_environment
from latfix.settings import RunnerSettings, rules_of

#: Of every setting a value that is not its default.
OTHER: Mapping[str, Any] = {
    "device": "cuda:1",
    "devices": 2,
    "max_batch_size": 16,
    "batch_window_ms": 2.5,
    "workers": 4,
    "intra_op_threads": 2,
    "max_queue": 64,
    "timeout_ms": 1500.0,
    "keep_precision": ["encoder.0"],
    "batch_key": "tokens",
    "env": {"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "dirty_decay_ms:-1", "PYTORCH_ALLOC_CONF": "a b:c'd"},
}


def other(name: str) -> Any:
    rule, default = rules_of(RunnerSettings)[name], RunnerSettings().to_json()[name]
    if name in OTHER:
        return OTHER[name]
    if rule.choices:
        return next(choice for choice in rule.choices if choice != default)
    return True if default is False else default + 0.5 if rule.is_float else default + 1


EVERYTHING = {name: other(name) for name in rules_of(RunnerSettings)}


def exported(target: str, settings: Mapping[str, Any], workload: str = "ranker") -> Export:
    plan = Plan(workload=workload, fixes=(PlannedFix(id="a.b", settings=settings),))
    return export(target, plan, process_environment(RunnerSettings().with_overrides(plan.settings()), {}))


def parsed(target: str, settings: Mapping[str, Any], workload: str = "ranker") -> Any:
    """The only file of a server, or both of TorchServe's."""
    found = [PARSERS[name](text) for name, text in exported(target, settings, workload).files.items()]
    return found[0] if len(found) == 1 else tuple(found)


def read_protobuf_text(text: str) -> dict[str, Any]:
    """Fields by name, as Triton reads them; those at their default are left out."""
    found: dict[str, Any] = MessageToDict(text_format.Parse(text, ModelConfig()), preserving_proto_field_name=True)
    return found


def read_yaml(text: str) -> Any:
    """Block mappings and sequences with scalars as JSON has them."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]

    def block(rows: list[str]) -> Any:
        if rows[0].startswith("- "):
            starts = [k for k, row in enumerate(rows) if row.startswith("- ")]
            ends = [*starts[1:], len(rows)]
            return [item([rows[a][2:], *(row[2:] for row in rows[a + 1 : b])]) for a, b in zip(starts, ends)]  # noqa: B905
        found: dict[str, Any] = {}
        while rows:
            key, _, rest = rows[0].partition(":")
            assert re.fullmatch(r"[\w./-]+", key), f"a key, not {key!r}"
            inside = [row for row in rows[1:] if row.startswith(" ")]
            count = next((k for k, row in enumerate(rows[1:]) if not row.startswith(" ")), len(rows) - 1)
            assert len(inside[:count]) == count and key not in found
            found[key] = block([row[2:] for row in rows[1 : 1 + count]]) if count else json.loads(rest)
            rows = rows[1 + count :]
        return found

    def item(rows: list[str]) -> Any:
        return block(rows) if re.match(r"[\w./-]+:", rows[0]) else json.loads(rows[0])

    return block(lines) if lines else {}


def read_properties(text: str) -> dict[str, str]:
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"\w+=\w+", row) for row in rows)
    return dict(row.split("=") for row in rows)


def read_shell(text: str) -> dict[str, str]:
    words = [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]
    assert all(len(line) == 1 for line in words), "one word a line, or a shell would run a command"
    return dict(line[0].split("=", 1) for line in words)


def read_python(text: str) -> dict[str, Any]:
    return {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(text).body}  # type: ignore[attr-defined]


PARSERS = {
    "config.pbtxt": read_protobuf_text,
    "vllm.yaml": read_yaml,
    "config.properties": read_properties,
    "model-config.yaml": read_yaml,
    "litserve_settings.py": read_python,
    "serve_config.yaml": read_yaml,
    "latfix.env": read_shell,
    "container.yaml": read_yaml,
}


def test_every_setting_has_a_line_for_every_server() -> None:
    settings = set(rules_of(RunnerSettings))
    assert set(NO_COUNTERPART) == settings
    assert {name: set(target.table) for name, target in TARGETS.items()} == dict.fromkeys(TARGETS, settings)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_changed_setting_is_written_or_reported(target: str, name: str) -> None:
    needs = {"devices": {"device": "cuda"}, "pin": {}}.get(name, {})
    bare, found = exported(target, needs), exported(target, {**needs, name: EVERYTHING[name]})
    written = [PARSERS[name](text) for name, text in found.files.items()]
    assert found.notes or written != [PARSERS[name](text) for name, text in bare.files.items()]
    assert all(f"# {note}\n" in text for note in found.notes for text in found.files.values())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("settings", [{}, RunnerSettings().to_json(), EVERYTHING], ids=["empty", "defaults", "all"])
def test_what_is_written_parses(target: str, settings: Mapping[str, Any]) -> None:
    parsed(target, settings, workload='of "quotes": {x}\n# and é')


@pytest.mark.parametrize("target", TARGETS)
def test_defaults_ask_for_nothing_that_is_missing_but_no_batches(target: str) -> None:
    notes = [note for note in exported(target, RunnerSettings().to_json()).notes if "no counterpart" in note]
    assert {note.partition(" =")[0] for note in notes} <= {"max_batch_size", "batch_window_ms"}


@pytest.mark.parametrize("target", ["env", "kubernetes"])
def test_a_plan_of_no_batches_is_reported_where_only_your_code_can_follow_it(target: str) -> None:
    notes = exported(target, {"max_batch_size": 1, "batch_window_ms": 0.0, "shared_model": False}).notes
    assert [note.partition(" has")[0] for note in notes] == ["max_batch_size = 1", "batch_window_ms = 0.0"]


def test_triton() -> None:
    config = parsed("triton", {key: OTHER[key] for key in ("max_batch_size", "batch_window_ms", "workers")})
    assert config == {
        "name": "ranker",
        "max_batch_size": 16,
        "dynamic_batching": {"max_queue_delay_microseconds": "2500"},
        "instance_group": [{"count": 4}],
    }
    config = parsed("triton", EVERYTHING | {"backend": "tensorrt", "precision": "fp16", "cuda_graphs": True})
    assert config["instance_group"] == [{"kind": "KIND_GPU", "gpus": [1, 2], "count": 2}]
    assert config["dynamic_batching"]["default_queue_policy"] == {
        "max_queue_size": 64,
        "default_timeout_microseconds": "1500000",
        "allow_timeout_override": True,
    }
    (accelerator,) = config["optimization"]["execution_accelerators"]["gpu_execution_accelerator"]
    assert accelerator["name"] == "tensorrt" and config["backend"] == "onnxruntime"
    assert accelerator["parameters"] == {"precision_mode": "FP16", "trt_cuda_graph_enable": "true"}
    openvino = parsed("triton", {"backend": "openvino", "intra_op_threads": 2})
    assert openvino["optimization"]["execution_accelerators"] == {"cpu_execution_accelerator": [{"name": "openvino"}]}
    assert openvino["parameters"] == {"intra_op_thread_count": {"string_value": "2"}}


def test_triton_forms_batches_of_a_plan_that_only_sets_their_size() -> None:
    """Without ``dynamic_batching`` Triton would serve requests one by one."""
    config = parsed("triton", {"max_queue": 64, "max_batch_size": 16})
    assert config["dynamic_batching"] == {"default_queue_policy": {"max_queue_size": 64}}
    (note,) = exported("triton", {"max_batch_size": 16}).notes
    assert "max_queue_delay_microseconds" in note
    assert "dynamic_batching" not in parsed("triton", {"max_batch_size": 1})


def test_settings_that_triton_lacks_are_reported() -> None:
    notes = exported("triton", {"precision": "int8_dynamic", "schedule": "shortest", "batch_window_ms": 1.0}).notes
    assert [note.partition(" =")[0] for note in notes] == ["precision", "schedule", "batch_window_ms"]
    assert "no counterpart in Triton" in notes[1] and "max_batch_size" in notes[2]


def test_vllm() -> None:
    settings = {"max_batch_size": 16, "precision": "bf16", "device_memory_share": 0.8, "device": "cuda", "devices": 2}
    assert parsed("vllm", settings) == {
        "max-num-seqs": 16,
        "dtype": "bfloat16",
        "gpu-memory-utilization": 0.8,
        "data-parallel-size": 2,
    }
    assert parsed("vllm", {"precision": "fp8_dynamic"}) == {"quantization": "fp8"}


def test_torchserve() -> None:
    settings = {
        "max_batch_size": 16,
        "batch_window_ms": 2.5,
        "workers": 4,
        "max_queue": 64,
        "compile": "max-autotune",
    }
    server, model = parsed("torchserve", settings)
    assert server == {"job_queue_size": "64"}
    assert model == {
        "batchSize": 16,
        "maxBatchDelay": 2,
        "minWorkers": 4,
        "maxWorkers": 4,
        "pt2": {"compile": {"enable": True, "backend": "inductor", "mode": "max-autotune"}},
    }
    (note,) = exported("torchserve", {"max_batch_size": 16}).notes
    assert "set maxBatchDelay" in note, "its default is 100 ms"


def test_litserve() -> None:
    assert parsed("litserve", EVERYTHING) == {
        "LIT_API": {"max_batch_size": 16, "batch_timeout": 0.0025},
        "LIT_SERVER": {"accelerator": "cuda", "devices": [1, 2], "workers_per_device": 2, "timeout": 1.5},
    }


def test_rayserve() -> None:
    config = parsed("rayserve", {key: OTHER[key] for key in ("intra_op_threads", "workers", "timeout_ms", "env")})
    deployment = config["applications"][0]["deployments"][0]
    assert config["http_options"] == {"request_timeout_s": 1.5}
    assert deployment["num_replicas"] == 4
    assert deployment["ray_actor_options"] == {
        "num_cpus": 2,
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "2", **OTHER["env"]}},
    }


@pytest.mark.parametrize("order", [("workers", "device", "devices"), ("device", "devices", "workers")])
def test_replicas_that_share_a_gpu_ask_for_a_part_of_it(order: tuple[str, ...]) -> None:
    """A replica that asks for more than is left is never started."""
    deployment = parsed("rayserve", {name: OTHER[name] for name in order})["applications"][0]["deployments"][0]
    assert deployment["num_replicas"] == 4 and deployment["ray_actor_options"] == {"num_gpus": 0.5}
    alone = parsed("rayserve", {"device": "cuda"})["applications"][0]["deployments"][0]
    assert alone["ray_actor_options"] == {"num_gpus": 1}


def test_a_small_number_is_not_a_text_in_yaml() -> None:
    """YAML 1.1 needs a point in a number with an exponent."""
    (text,) = exported("rayserve", {"batch_window_ms": 0.05}).files.values()
    assert "batch_wait_timeout_s: 0.00005\n" in text


def test_a_variable_that_yaml_takes_for_a_truth_value_is_quoted() -> None:
    assert '  "NO": "1"\n' in exported("rayserve", {"env": {"NO": "1"}}).files["serve_config.yaml"]


def test_env() -> None:
    found = parsed("env", {"env": OTHER["env"], "intra_op_threads": 2, "prefault_mb": 512})
    assert found == {"OMP_NUM_THREADS": "2", **OTHER["env"], "GLIBC_TUNABLES": found["GLIBC_TUNABLES"]}
    assert "glibc.malloc.trim_threshold=" in found["GLIBC_TUNABLES"]
    assert parsed("env", {"env": {"OMP_NUM_THREADS": "1"}, "intra_op_threads": 2}) == {"OMP_NUM_THREADS": "1"}


def test_kubernetes() -> None:
    settings = {"workers": 2, "intra_op_threads": 3, "lock_memory": True, "nice": -5, "device": "cuda"}
    assert parsed("kubernetes", settings) == {
        "resources": {"requests": {"cpu": "6"}, "limits": {"cpu": "6", "nvidia.com/gpu": "1"}},
        "env": [{"name": "OMP_NUM_THREADS", "value": "3"}],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK", "SYS_NICE"]}},
    }
