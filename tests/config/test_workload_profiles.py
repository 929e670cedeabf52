"""Profiles of a workload: changed keys, unchanged keys, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from latfix.cli.shared.options import TrafficOptions, load_traffic
from latfix.config.workload_toml import load_spec, samples, traffic_arguments
from latfix.errors import InputError
from latfix.settings import Objective, RunnerSettings

BASE = """
[workload]
name = "ranker"
entry = "adapter:Ranker"
traffic = "traffic.jsonl"

[runner]
max_batch_size = 8
workers = 2
"""
LARGE = """
[profile.large.workload]
name = "ranker-large"
entry = "big:Ranker"

[profile.large.runner]
workers = 1
device = "cpu"

[profile.large.objective]
slo_ms = 20.0

[profile.large.traffic]
speed = 4.0
repeat = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workload.toml").write_text(BASE + LARGE)
    for name in ("adapter.py", "big.py"):
        (tmp_path / name).touch()
    (tmp_path / "traffic.jsonl").write_text('{"arrival_s": 0}\n{"arrival_s": 2}\n')
    return tmp_path


def test_a_profile_replaces_only_its_own_keys(folder: Path) -> None:
    spec = load_spec(str(folder), profile="large")
    assert (spec.name, spec.entry, spec.profile) == ("ranker-large", "big:Ranker", "large")
    assert spec.settings == RunnerSettings(max_batch_size=8, workers=1, device="cpu")
    assert spec.objective == Objective(slo_ms=20.0) and spec.traffic == folder / "traffic.jsonl"
    assert traffic_arguments(spec, {}) == ["--profile", "large"] and not traffic_arguments(load_spec(str(folder)), {})


def test_without_a_profile_the_workload_is_unchanged(folder: Path) -> None:
    spec = load_spec(str(folder))
    (folder / "workload.toml").write_text(BASE)
    assert spec == load_spec(str(folder))


def test_a_profiles_speed_and_repetitions_multiply_with_options(folder: Path) -> None:
    spec = load_spec(str(folder), profile="large")
    plain = load_traffic(spec, TrafficOptions())
    assert len(plain) == 6
    again = load_traffic(spec, TrafficOptions(speed=2.0, repeat=2))
    assert len(again) == 12
    gaps = [traffic.arrival_ns[1] - traffic.arrival_ns[0] for traffic in (plain, again)]
    assert gaps == [500_000_000, 250_000_000]


@pytest.mark.parametrize(
    ("lines", "profile", "says"),
    [
        ("", "gpu", "--profile: found 'gpu', but"),
        (LARGE, "larg", "did you mean 'large'?"),
        (LARGE, "x", "expected one of large"),
        ("[profile.large.runner]\nworker = 2\n", "", "workload.toml:11: found unknown key"),
        ("[profile.large.runner]\nworkers = 0\n", "", "workers = 0"),
        ("[profile.large.objective]\nslo = 2\n", "", ":11: found unknown key 'slo' in [profile.large.objective]"),
        ("[profile.large.model]\nname = 'a'\n", "", "model"),
        ("[profile]\nlarge = 3\n", "", "large = 3"),
        ("[profile.large]\nrunner = 3\n", "", "runner = 3"),
        ("[profile.large.traffic]\nspeed = 0\n", "", "speed = 0"),
        ("[profile.large.traffic]\nrepeat = 1.5\n", "", "repeat = 1.5"),
        ("[profile.large.workload]\nmodel = 'a.pt2'\n", "", "model"),
    ],
)
def test_wrong_profiles_are_reported_even_if_not_selected(folder: Path, lines: str, profile: str, says: str) -> None:
    (folder / "workload.toml").write_text(BASE + lines)
    with pytest.raises(InputError) as refused:
        load_spec(str(folder), profile=profile)
    assert says in refused.value.message and "\n" not in refused.value.message


def test_speed_belongs_to_profiles(folder: Path) -> None:
    (folder / "workload.toml").write_text(BASE + "[traffic]\nspeed = 2.0\n")
    with pytest.raises(InputError, match="speed"):
        load_spec(str(folder))


@pytest.mark.parametrize("name", sorted(samples()))
def test_every_sample_has_one_for_a_gpu(name: str) -> None:
    spec = load_spec(name, profile="gpu")
    assert spec.name == f"{name}-gpu" and spec.settings.device == "cuda"
    assert spec.speed > 1 and spec.repeat > 1
