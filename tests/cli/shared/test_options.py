"""What the shared options mean: the schedule that is replayed, and where JSON goes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latfix.cli.shared.options import TrafficOptions, check_device, check_seed, load_traffic, parse_budget
from latfix.cli.shared.output_options import Destination, check_writable
from latfix.config.plan import Plan, plan_text
from latfix.config.workload_toml import load_spec
from latfix.errors import InputError
from latfix.traffic.schedule import Traffic
from tests.cli.conftest import Cli
from tests.conftest import write_workload


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Traffic]:
    rows = [{"arrival_s": k * 0.5, "id": str(k), "value": k} for k in range(10)]
    folder = write_workload(tmp_path_factory.mktemp("options") / "w", traffic=rows)

    def load(**options: Any) -> Traffic:
        chosen = TrafficOptions(**options)
        chosen.check()
        return load_traffic(load_spec(str(folder)), chosen)

    return load


def _seconds(traffic: Traffic) -> list[float]:
    return [ns / 1e9 for ns in traffic.arrival_ns.tolist()]


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("out.json", b"SQLite format 3\0and more", "a database"),
        ("out.json", b"PAR1\x15\x04", "recorded rows"),
        ("out.json", b"\x1f\x8b\x08\x00", "compressed rows"),
        ("run.json", b'{\n  "schema": "latfix.run/1",\n  "rows": {}\n}\n', "a run's own record"),
        ("search.json", b'{\n  "schema": "latfix.search/1"\n}\n', "a run's own record"),
        ("traffic.json", b'{"arrival_s": 0}\n', "lines of JSON"),
        ("traffic.json", b'{"t": 0, "x": "' + b"y" * 9000 + b'"}\n{"t": 1}\n', "lines of JSON"),
        ("workload.toml", b"[workload]\n", "a .toml file"),
        ("adapter.py", b"import torch\n", "a .py file"),
        ("model.onnx", b"\x08\x07", "a .onnx file"),
    ],
)
def test_a_report_takes_no_recording_s_place(name: str, content: bytes, found: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for option in ("--json", "--junit", "--markdown", "--picture"):
        with pytest.raises(InputError, match=rf"{option}: found {found}.* in .*; name another file"):
            check_writable(option, str(path))
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b'{\n  "schema": "latfix.diagnosis/1"\n}\n',
        b'{\n  "schema": "latfix.optimization/1",\n  "arrival_s": 1\n}\n',
        b"<testsuite/>\n",
        b"## latfix\n",
        b'{"written": "by another program"}\n',
    ],
)
def test_a_report_takes_an_older_one_s_place(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(content)
    check_writable("--json", str(path))
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, [k * 0.5 for k in range(10)]),
        ({"speed": 2.0}, [k * 0.25 for k in range(10)]),
        ({"speed": 0.5}, [float(k) for k in range(10)]),
        ({"speed": 2.0, "duration": 1.0}, [0.0, 0.25, 0.5, 0.75]),
        ({"limit": 3}, [0.0, 0.5, 1.0]),
        ({"limit": 1000}, [k * 0.5 for k in range(10)]),
    ],
)
def test_when_requests_arrive(options: Any, seconds: list[float], schedule: Callable[..., Traffic]) -> None:
    traffic = schedule(**options)
    assert _seconds(traffic) == seconds and traffic.ids == [str(k) for k in range(len(seconds))]


def test_repeat_makes_new_requests_later(schedule: Callable[..., Traffic]) -> None:
    traffic = schedule(repeat=3)
    assert len(traffic) == len(set(traffic.ids)) == 30
    assert _seconds(traffic) == sorted(_seconds(traffic))
    assert traffic.features["value"].tolist() == [*range(10)] * 3
    assert len(schedule(repeat=3, limit=12)) == 12


def test_map_derives_a_feature(schedule: Callable[..., Traffic]) -> None:
    traffic = schedule(mapping=("twice=value * 2",))
    assert traffic.features["twice"].tolist() == [2 * k for k in range(10)]


def test_the_schedule_records_its_transforms(schedule: Callable[..., Traffic]) -> None:
    traffic = schedule(speed=2.0, limit=3)
    names = [entry["transform"] for entry in traffic.metadata["transforms"]]
    assert len(names) == 2


def test_no_request_within_the_duration(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", traffic=[{"arrival_s": 0.9}])
    with pytest.raises(InputError, match="found no request in the first"):
        load_traffic(load_spec(str(folder)), TrafficOptions(duration=0.5))


@pytest.mark.parametrize(
    ("options", "seconds"),
    [({"duration": 2.0}, [0.0, 1.0]), ({"to_duration": 10.0}, [0.0, 2.0, 10.0])],
)
def test_a_duration_counts_from_the_first_request_where_that_comes_late(
    options: Any, seconds: list[float], tmp_path: Path
) -> None:
    folder = write_workload(tmp_path / "w", traffic=[{"arrival_s": 3600}, {"arrival_s": 3601}, {"arrival_s": 3605}])
    assert _seconds(load_traffic(load_spec(str(folder)), TrafficOptions(**options))) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("5m", 300.0), ("1.5h", 5400.0), ("10", 10.0), (" 2 m ", 120.0)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_devices_and_seeds_that_are_valid(device: str) -> None:
    assert check_device(device) == {"device": device}
    assert check_device(None) == {}
    assert [check_seed(seed) for seed in (0, 7, 2**63 - 1)] == [0, 7, 2**63 - 1]


def test_json_goes_to_a_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    target = Destination.open("--json", str(file))
    assert not file.exists(), "looking whether it can be written leaves nothing behind"
    target.write_json({"a": 1})
    assert json.loads(file.read_text()) == {"a": 1}
    Destination.open("--json", str(file))
    assert json.loads(file.read_text()) == {"a": 1}, "and spoils nothing that is there"


def test_json_goes_to_the_file_that_a_link_names(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("file.json")
    target = Destination.open("--json", str(tmp_path / "link.json"))
    assert not (tmp_path / "file.json").exists(), "nothing is written before there is a result"
    target.write_json({"a": 1})
    assert (tmp_path / "link.json").is_symlink() and json.loads((tmp_path / "file.json").read_text()) == {"a": 1}


def test_json_into_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    target = Destination.open("--json", str(pipe))
    reader.start()
    target.write_json({"a": 1})
    reader.join(10)
    assert json.loads(read[0]) == {"a": 1}
    assert pipe.is_fifo(), "the pipe is still one"


def test_json_that_cannot_be_written_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    target = Destination.open("--json", str(folder / "d.json"))
    folder.rmdir()
    with pytest.raises(InputError, match="--json: cannot write"):
        target.write_json({"a": 1})


def test_json_to_standard_output_is_finite(capsys: pytest.CaptureFixture[str]) -> None:
    target = Destination.open("--json", "-")
    assert target.to_stdout
    target.write_json({"a": [1, 2.5, None, "ü"]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, 2.5, None, "ü"]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        target.write_json({"a": float("nan")})


@pytest.mark.parametrize(("made_for", "warned"), [("other", True), ("w", False)])
def test_a_plan_of_another_workload_is_applied_with_a_warning(
    diagnose: Cli, tmp_path: Path, made_for: str, warned: bool
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(Plan(workload=made_for, fixes=())), encoding="utf-8")
    code, _, err = diagnose("--plan", plan)
    assert code == 0
    assert (f"warning: The plan was made for {made_for!r}, not for" in err) is warned
