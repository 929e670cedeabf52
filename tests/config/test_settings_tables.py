"""Settings tables: every field has a rule, and every mistake a line."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from latfix.config.settings_tables import validate_settings, validate_table
from latfix.errors import InputError
from latfix.files.toml_reader import TomlFile
from latfix.settings import Objective, RunnerSettings, rules_of

FILE = Path("workload.toml")


def _runner(text: str) -> dict[str, Any]:
    return validate_settings(tomllib.loads(text)["runner"], TomlFile(FILE, text), "runner")


def test_every_field_has_a_rule_that_its_default_meets() -> None:
    assert list(rules_of(RunnerSettings)) == [f.name for f in fields(RunnerSettings)]
    assert list(rules_of(Objective)) == [f.name for f in fields(Objective)]
    defaults = RunnerSettings().to_json()
    assert validate_settings(defaults, TomlFile(FILE), "runner") == defaults


def test_values_are_ready_for_the_settings() -> None:
    values = _runner(
        '[runner]\ndevice = "cuda:1"\nmax_batch_size = 8\nbatch_window_ms = 5\nseed = 9223372036854775807\n'
        'precision = "bf16"\nbuffer_pool = true\nenv = { OMP_WAIT_POLICY = "PASSIVE" }\n'
    )
    settings = RunnerSettings().with_overrides(values)
    assert (settings.device, settings.max_batch_size, settings.env["OMP_WAIT_POLICY"]) == ("cuda:1", 8, "PASSIVE")
    assert isinstance(settings.batch_window_ms, float) and settings.batch_window_ms == 5.0
    assert validate_table({"percentile": 99.9, "slo_ms": 200}, Objective, TomlFile(FILE), "objective") == {
        "percentile": 99.9,
        "slo_ms": 200.0,
    }


@pytest.mark.parametrize(
    "line",
    [
        "max_batch_size = 0",
        "max_batch_size = 4097",
        "max_batch_size = 8.0",
        "max_batch_size = [8]",
        "max_batch_size = 1979-05-27",
        "compile = true",
        "max_batch_size = true",
        'max_batch_size = "8"',
        "batch_window_ms = -1",
        "batch_window_ms = 60001",
        "batch_window_ms = nan",
        "batch_window_ms = inf",
        "batch_window_ms = false",
        "workers = 0",
        "workers = 257",
        "prepare_threads = 0",
        "intra_op_threads = -1",
        "intra_op_threads = 1025",
        "max_queue = -1",
        "timeout_ms = -0.5",
        "timeout_ms = [1]",
        "warmup_requests = 1000001",
        "warmup_shapes = -1",
        "seed = -1",
        "seed = 9223372036854775808",
        "shared_model = 1",
        'buffer_pool = "yes"',
        'precision = "fp64"',
        "precision = 16",
        'compile = "Dynamic"',
        'batch_order = ""',
        'gc = "frozen"',
        'device = "gpu"',
        'device = "cuda:"',
        'device = "cuda:-1"',
        "device = 0",
        "env = 1",
        "env = { OMP_NUM_THREADS = 1 }",
        'env = { "A=B" = "1" }',
        'env = { A = "\\u0000" }',
        "workerz = 2",
        "Workers = 2",
    ],
)
def test_a_wrong_setting_names_file_line_and_what_is_expected(line: str) -> None:
    with pytest.raises(InputError) as caught:
        _runner(f"# first\n[runner]\n\n{line}\n")
    message = caught.value.message
    assert message.startswith("workload.toml:4: found ")
    assert "; expected " in message and "\n" not in message


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(InputError, match="did you mean 'max_batch_size'"):
        _runner("[runner]\nmax_batchsize = 2\n")
    with pytest.raises(InputError, match="did you mean 'bf16'"):
        _runner('[runner]\nprecision = "bf61"\n')


@pytest.mark.parametrize(
    "table",
    [
        {"percentile": 0},
        {"percentile": 0.99},
        {"percentile": 100},
        {"percentile": "99"},
        {"percentile": True},
        {"slo_ms": 0},
        {"slo_ms": -1},
        {"slo_ms": float("inf")},
        {"max_accuracy_drop": -0.1},
        {"max_accuracy_drop": float("nan")},
        {"slo": 200},
    ],
)
def test_a_wrong_objective_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        validate_table(table, Objective, TomlFile(FILE), "objective")


def test_lines_of_tables_and_keys() -> None:
    text = (
        'a = 1\n[runner]  # before\nworkers = 1\nenv.A = "x"\n[runner.extra]\nworkers = 2\n[ other ]\nt = { k = 1 }\n'
    )
    assert TomlFile(FILE, text).line("", "a") == 1
    assert TomlFile(FILE, text).line("runner") == 2
    assert TomlFile(FILE, text).line("runner", "workers") == 3
    assert TomlFile(FILE, text).line("runner", "env") == 4
    assert TomlFile(FILE, text).line("runner", "extra") == 5
    assert TomlFile(FILE, text).line("runner.extra", "workers") == 6
    assert TomlFile(FILE, text).line("", "other") == 7
    assert TomlFile(FILE, text).line("other.t", "k") == 8
    assert TomlFile(FILE, text).line("missing", "k") is None


def test_the_page_of_workloads_has_a_row_for_each_setting() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "workload.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = [part for cell in cells for part in cell.split("`")[1::2]]
    assert {field.name for field in fields(RunnerSettings)} <= set(documented)
