"""The next commands that a report suggests."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from latfix.config.workload_toml import load_spec, traffic_arguments
from latfix.reports.next_commands import optimize_command, replay_command, workload_argument
from latfix.run_record.run_meta import RunMeta


@pytest.mark.parametrize(
    ("meta", "argument"),
    [
        ({"workload": "ranker", "workload_folder": "/srv/models/my ranker"}, "/srv/models/my ranker"),
        ({"workload": "ranker", "workload_folder": "/lib/latfix/sample_workloads/recommender"}, "recommender"),
        ({"workload": "ranker"}, "ranker"),
        ({}, ""),
    ],
)
def test_the_workload_is_named_as_a_user_would_type_it(meta: dict[str, Any], argument: str) -> None:
    assert workload_argument(RunMeta(**meta)) == argument


def test_a_shell_reads_each_argument_whole() -> None:
    evil = "a'; rm -rf $HOME #"
    assert shlex.split(optimize_command(evil)) == ["latfix", "optimize", evil]
    assert shlex.split(replay_command(evil, "my plan.toml")) == ["latfix", "diagnose", evil, "--plan", "my plan.toml"]


def meta_of(workload: Path, traffic: Path | None, mapping: dict[str, str]) -> RunMeta:
    """What a run records of its workload."""
    spec = load_spec(str(workload), traffic=traffic)
    return RunMeta(
        workload=spec.name,
        workload_folder=str(spec.folder),
        entry=spec.entry,
        traffic_arguments=tuple(traffic_arguments(spec, mapping)),
    )


def test_a_model_file_is_typed_with_its_traffic(tmp_path: Path) -> None:
    (tmp_path / "my model.onnx").write_bytes(b"\x08\x08\x3a\x00")
    (tmp_path / "t.jsonl").write_text(json.dumps({"arrival_s": 0}) + "\n")
    workload, traffic = tmp_path / "my model.onnx", tmp_path / "t.jsonl"
    meta = meta_of(workload, traffic, {"length": "min(a, 6); x"})
    more = ["--traffic", str(traffic), "--map", "length=min(a, 6); x"]
    assert shlex.split(optimize_command(workload_argument(meta))) == ["latfix", "optimize", str(workload), *more]
    typed = workload_argument(meta, typed="my model.onnx")
    replay = ["latfix", "diagnose", "my model.onnx", *more, "--plan", "a b.toml"]
    assert shlex.split(replay_command(typed, "a b.toml")) == replay
    again = load_spec(str(workload), traffic=traffic)
    assert again.entry == "my model.onnx", "what is printed is what runs"


def test_a_model_that_its_folder_describes_needs_no_more(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x3a\x00")
    (tmp_path / "t.jsonl").write_text(json.dumps({"arrival_s": 0}) + "\n")
    (tmp_path / "workload.toml").write_text('[workload]\nmodel = "model.onnx"\ntraffic = "t.jsonl"\n')
    typed = workload_argument(meta_of(tmp_path, None, {}))
    assert typed == str(tmp_path / "model.onnx")
    assert load_spec(typed) == load_spec(str(tmp_path))
    (tmp_path / "inner").mkdir()
    toml = '[workload]\nmodel = "../model.onnx"\ntraffic = "../t.jsonl"\n'
    (tmp_path / "inner" / "workload.toml").write_text(toml)
    assert workload_argument(meta_of(tmp_path / "inner", None, {})) == str(tmp_path / "inner")
