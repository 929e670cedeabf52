"""``workload.toml`` as a value: defaults, paths, samples by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from latfix.config.workload_toml import load_spec, model_inputs, samples, traffic_arguments
from latfix.errors import InputError
from latfix.settings import Objective, RunnerSettings

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


def test_names_in_any_language(folder: Path) -> None:
    (folder / "modèle-2.py").touch()
    (folder / "workload.toml").write_text(FULL.replace("adapter:Ranker", "modèle-2:Größe"), encoding="utf-8")
    assert load_spec(str(folder)).entry == "modèle-2:Größe"


def test_missing_keys_have_defaults(folder: Path) -> None:
    assert load_spec(str(folder / "workload.toml")) == load_spec(str(folder)), "the file itself may be named"
    (folder / "workload.toml").write_text('[workload]\nentry = "adapter:A"\ntraffic = "traffic.jsonl"\n')
    spec = load_spec(str(folder))
    assert (spec.name, spec.settings, spec.objective) == (folder.name, RunnerSettings(), Objective())


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


ONNX = b"\x08\x08\x3a\x00"
MODEL = '[workload]\nmodel = "model.onnx"\ntraffic = "traffic.jsonl"\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "traffic.jsonl").write_text('{"arrival_s": 0}\n')
    (tmp_path / "model.onnx").write_bytes(ONNX)
    return tmp_path / "model.onnx"


def test_a_model_file_with_traffic_is_a_workload(model: Path, tmp_path: Path) -> None:
    spec = load_spec(str(model), traffic=tmp_path / "traffic.jsonl")
    assert (spec.name, spec.folder, spec.entry) == ("model", tmp_path, "model.onnx")
    assert spec.traffic == tmp_path / "traffic.jsonl"
    assert spec.settings == RunnerSettings()
    with pytest.raises(InputError, match=r"without traffic.*--traffic FILE"):
        load_spec(str(model))
    with pytest.raises(InputError, match="no such file"):
        load_spec(str(model), traffic=tmp_path / "nothing")


def test_weights_in_place_of_a_workload_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(InputError, match=r"model.h5: found an HDF5 file; .*load it in an adapter"):
        load_spec(str(tmp_path / "model.h5"))
    (tmp_path / "notes.md").write_text("words")
    with pytest.raises(InputError, match=r"notes.md: found a file; expected a folder with workload.toml or a model"):
        load_spec(str(tmp_path / "notes.md"))


def test_a_folder_may_have_a_model_instead_of_an_adapter(model: Path, tmp_path: Path) -> None:
    inputs = '[inputs]\nx = { shape = ["batch", "length"] }\n'
    (tmp_path / "workload.toml").write_text(MODEL + "[runner]\nmax_batch_size = 4\n" + inputs)
    spec = load_spec(str(tmp_path))
    assert (spec.entry, spec.settings.max_batch_size) == ("model.onnx", 4)
    assert load_spec(str(model)) == spec, "the file alone is as the folder describes it"
    assert list(model_inputs(spec.folder, spec.entry)) == ["x"]


@pytest.mark.usefixtures("model")
def test_a_model_next_to_another_workload_is_independent(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(ONNX)
    (tmp_path / "workload.toml").write_text(MODEL + "[runner]\nmax_batch_size = 4\n[inputs]\nx = {}\n")
    spec = load_spec(str(tmp_path / "other.onnx"), traffic=tmp_path / "traffic.jsonl")
    assert spec.settings.max_batch_size == 1
    assert model_inputs(spec.folder, spec.entry) == {}


def test_a_model_may_lie_elsewhere(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "workload"
    folder.mkdir()
    for place in ("../model.onnx", str(model)):
        (folder / "workload.toml").write_text(f'[workload]\nmodel = "{place}"\ntraffic = "../traffic.jsonl"\n')
        spec = load_spec(str(folder))
        assert (spec.folder / spec.entry).resolve() == model


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (MODEL + 'entry = "a:B"\n', "both entry and model"),
        (MODEL.replace("model.onnx", "nothing.onnx"), "no such file"),
        (MODEL.replace("model.onnx", "model.pth"), "ends in .pt2"),
        (MODEL.replace('"model.onnx"', "3"), "model = 3"),
        (MODEL.replace("model.onnx", "."), "ends in .pt2"),
        (MODEL.replace("model.onnx", "traffic.jsonl"), "ends in .pt2"),
        (MODEL.replace("model.onnx", "empty.onnx"), "an empty file"),
        (MODEL + "[inputs]\nx = 3\n", "x = 3"),
        ('[workload]\nentry = "adapter:A"\ntraffic = "traffic.jsonl"\n[inputs]\n', "no model"),
        (MODEL.replace('traffic = "traffic.jsonl"\n', ""), "no traffic"),
    ],
)
def test_wrong_models_in_a_folder(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "adapter.py").touch()
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "workload.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_spec(str(tmp_path))
    assert says in caught.value.message


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "loop"])
def test_names_that_no_file_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(InputError, match="no such folder or sample, and no such file"):
        load_spec(name)
    with pytest.raises(InputError, match=r"gone\.onnx: found no such file; expected an ONNX model"):
        load_spec("gone.onnx", traffic=tmp_path)
    Path("a.onnx").symlink_to("gone")
    with pytest.raises(InputError, match="a link to a file that is not there"):
        load_spec("a.onnx", traffic=tmp_path)


def test_inputs_without_effect_are_refused(model: Path, tmp_path: Path) -> None:
    """A user may follow a refusal's advice without the table that names the file."""
    (tmp_path / "workload.toml").write_text('[inputs]\nx = { shape = ["batch", "length"] }\n')
    expected = r"\[inputs\] without \[workload\]; expected model = \"model.onnx\" in \[workload\]"
    with pytest.raises(InputError, match=expected):
        load_spec(str(model), traffic=tmp_path / "traffic.jsonl")


def test_options_that_select_the_same_traffic(folder: Path, model: Path, tmp_path: Path) -> None:
    assert traffic_arguments(load_spec(str(folder)), {}) == []
    assert traffic_arguments(load_spec(str(folder)), {}, skipped_lines=1) == ["--skip-bad-lines"]
    other = tmp_path / "other.jsonl"
    other.touch()
    given = load_spec(str(model), traffic=other)
    assert traffic_arguments(given, {"a": "b / 2"}) == ["--traffic", str(other), "--map", "a=b / 2"]
    mapped = dataclasses.replace(given, traffic_map={"a": "b / 2"})
    assert traffic_arguments(mapped, {"a": "b / 2"}) == ["--traffic", str(other)]
