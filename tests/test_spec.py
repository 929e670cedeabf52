"""``workload.toml`` as a value: defaults, paths, samples by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from latfix.errors import InputError
from latfix.settings import Objective, RunnerSettings
from latfix.spec import load_spec, samples

FULL = """
[workload]
name = "ranker"
entry = "adapter:Ranker"
traffic = "traffic.jsonl"

[runner]
device = "cpu"
max_batch_size = 8
batch_window_ms = 5
workers = 2
env = { OMP_WAIT_POLICY = "PASSIVE" }

[objective]
percentile = 95
slo_ms = 200
max_accuracy_drop = 0.5

[traffic.map]
tokens = "min(input_tokens / 16, 256)"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "workload.toml").write_text(FULL)
    (tmp_path / "adapter.py").touch()
    (tmp_path / "traffic.jsonl").write_text('{"arrival_s": 0}\n')
    return tmp_path


def test_everything_is_read(folder: Path) -> None:
    spec = load_spec(str(folder))
    assert (spec.name, spec.entry, spec.folder) == ("ranker", "adapter:Ranker", folder)
    assert spec.traffic == folder / "traffic.jsonl"
    assert spec.settings == RunnerSettings(
        device="cpu", max_batch_size=8, batch_window_ms=5.0, workers=2, env={"OMP_WAIT_POLICY": "PASSIVE"}
    )
    assert spec.objective == Objective(percentile=95.0, slo_ms=200.0, max_accuracy_drop=0.5)
    assert spec.traffic_map == {"tokens": "min(input_tokens / 16, 256)"}


def test_what_is_left_out_has_defaults(folder: Path) -> None:
    (folder / "workload.toml").write_text('[workload]\nentry = "adapter:A"\ntraffic = "traffic.jsonl"\n')
    spec = load_spec(str(folder))
    assert spec.name == folder.name
    assert spec.settings == RunnerSettings()
    assert spec.objective == Objective()


def test_the_file_itself_may_be_named(folder: Path) -> None:
    assert load_spec(str(folder / "workload.toml")) == load_spec(str(folder))


def test_paths_do_not_depend_on_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    relative = load_spec(folder.name)
    assert relative.folder.is_absolute() and relative.traffic.is_absolute()
    monkeypatch.chdir(folder)
    assert load_spec(".") == relative


def test_other_traffic_may_be_given(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.touch()
    (folder / "traffic.jsonl").unlink()
    assert load_spec(str(folder), traffic=other).traffic == other
    with pytest.raises(InputError, match="no such file"):
        load_spec(str(folder), traffic=tmp_path / "nothing")


def test_samples_have_names() -> None:
    found = samples()
    assert found
    for name, path in found.items():
        spec = load_spec(name)
        assert spec.folder == path
        assert spec.name == name


def test_a_folder_goes_before_a_sample_of_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(samples()))
    here = folder / name
    here.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=r"workload\.toml: found no such file"):
        load_spec(name)


@pytest.mark.parametrize("suffix", [".pt2", ".pt", ".ts", ".onnx", ".engine"])
def test_a_model_file_says_what_to_do(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model{suffix}"
    file.touch()
    with pytest.raises(InputError, match="latfix init DIR"):
        load_spec(str(file))


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "loop"])
def test_names_that_no_file_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(InputError, match="no such folder or sample"):
        load_spec(name)
