"""Writing and reading back: exact, atomic, with the traffic's metadata."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.errors import InputError
from latfix.formatting import shown
from latfix.request import PRIORITIES
from latfix.traffic.io.metadata_sidecar import sidecar_path
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.io.stored_schedule import load_schedule, save_schedule
from latfix.traffic.io.writer import SUFFIXES, write_traffic
from latfix.traffic.schedule import Traffic

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARRIVAL = st.integers(0, 10**18)


def text_column(values: list[str | None]) -> np.ndarray[Any, np.dtype[Any]]:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    arrivals = sorted(draw(st.lists(ARRIVAL, min_size=1, max_size=8)))
    n = len(arrivals)

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=n, max_size=n))

    features = {
        "whole": np.array(column(st.integers(-(2**63) + 1, 2**63 - 1)), dtype=np.int64),
        "real": np.array(column(st.floats(allow_infinity=False, allow_nan=True)), dtype=np.float64),
        "text": text_column(column(TEXT | st.none())),
        "digits": text_column(column(st.sampled_from(["007", "1", "nan", "1e3", None]))),
    }
    present = {
        name: values
        for name, values in features.items()
        if any(value is not None and value == value for value in values.tolist())
    }
    return Traffic(
        arrival_ns=np.array(arrivals, dtype=np.int64),
        ids=draw(st.lists(TEXT, min_size=n, max_size=n, unique=True)),
        priority=np.array(column(st.integers(0, len(PRIORITIES) - 1)), dtype=np.int8),
        sessions=column(TEXT | st.none()),
        deadline_ms=np.array(column(st.floats(1e-3, 1e9) | st.just(float("nan"))), dtype=np.float64),
        features=present,
        payloads=column(JSON),
        metadata={"source": "x", "transforms": [{"transform": "limit", "n": 3}]},
    )


def assert_same(left: Traffic, right: Traffic) -> None:
    assert left.arrival_ns.tolist() == right.arrival_ns.tolist()
    assert (left.ids, left.sessions, left.payloads) == (right.ids, right.sessions, right.payloads)
    assert left.priority.tolist() == right.priority.tolist()
    np.testing.assert_array_equal(left.deadline_ms, right.deadline_ms)
    assert set(left.features) == set(right.features)
    for name, column in left.features.items():
        other = right.features[name]
        assert column.dtype == other.dtype
        if column.dtype.kind == "O":
            assert column.tolist() == other.tolist()
        else:
            np.testing.assert_array_equal(column, other)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40)
@given(traffic=traffics())
def test_written_traffic_reads_back_the_same(tmp_path: Path, suffix: str, traffic: Traffic) -> None:
    path = tmp_path / f"traffic{suffix}"
    write_traffic(traffic, path)
    back = read_traffic(path)
    assert_same(traffic, back)
    assert back.metadata["transforms"] == traffic.metadata["transforms"]


@settings(max_examples=40)
@given(traffic=traffics())
def test_a_schedule_loads_as_it_was_saved(tmp_path: Path, traffic: Traffic) -> None:
    save_schedule(traffic, tmp_path / "schedule.parquet")
    back = load_schedule(tmp_path / "schedule.parquet")
    assert_same(traffic, back)
    assert back.metadata == traffic.metadata


def small() -> Traffic:
    return Traffic.plain(
        np.array([1, 2], dtype=np.int64),
        ids=["a", "b"],
        priority=np.array([1, 1], dtype=np.int8),
        features={"lang": text_column(["", "de"])},
        metadata={"citation": "Someone, 2024"},
    )


def test_saving_and_loading_a_schedule_imports_no_pandas(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from latfix.traffic.io.stored_schedule import save_schedule, load_schedule\n"
        "from latfix.traffic.synthesize import Synthesis, synthesize\n"
        "path = Path(sys.argv[1])\n"
        "save_schedule(synthesize(Synthesis(kind='poisson', rate=9, duration_s=9)), path)\n"
        "assert len(load_schedule(path)) > 0\n"
        "assert 'pandas' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s.parquet")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_empty_text_goes_into_json_lines_but_not_into_csv(tmp_path: Path) -> None:
    write_traffic(small(), tmp_path / "t.jsonl")
    assert read_traffic(tmp_path / "t.jsonl").features["lang"].tolist() == ["", "de"]
    first = (tmp_path / "t.jsonl").read_text().splitlines()[0]
    assert first.startswith('{"arrival_s": 0.000000001, ') and json.loads(first)["id"] == "a"
    with pytest.raises(InputError, match="empty text in 'lang'"):
        write_traffic(small(), tmp_path / "t.csv")
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_past_of_a_file_is_kept(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    write_traffic(small(), path)
    back = read_traffic(path)
    assert back.metadata["citation"] == "Someone, 2024"
    assert back.metadata["written_from"] == {"citation": "Someone, 2024"}


def test_a_stale_sidecar_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_traffic(small(), path)
    path.write_text('{"arrival_s": 5}\n')
    back = read_traffic(path)
    assert "written_from" not in back.metadata
    assert "changed" in back.metadata["sidecar"]


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": "latfix.traffic/99"}', '{"schema": "latfix.traffic/1"}'])
def test_a_damaged_sidecar_is_an_input_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.jsonl"
    write_traffic(small(), path)
    sidecar_path(path).write_text(content)
    with pytest.raises(InputError, match=r"meta\.json"):
        read_traffic(path)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"metadata": {"transforms": [1]}}, "transforms"),
        ({"metadata": {"transforms": [{}]}}, "transforms"),
        ({"metadata": {"transforms": "scale_time"}}, "transforms"),
        ({"metadata": {"mean": float("nan")}}, "a number that it cannot hold"),
        ({"metadata": {"mean": float("inf")}}, "a number that it cannot hold"),
        ({"features": {"lang": ["text"]}}, "a feature of another kind"),
    ],
)
def test_a_sidecar_of_the_right_file_with_wrong_values_is_an_input_error(
    tmp_path: Path, content: dict[str, Any], found: str
) -> None:
    """They would be found where they are shown or written again, without their file's name."""
    path = tmp_path / "t.jsonl"
    write_traffic(small(), path)
    whole = json.loads(sidecar_path(path).read_text())
    sidecar_path(path).write_text(json.dumps(whole | content))
    with pytest.raises(InputError, match=f"meta.json: found .*{found}.*delete or restore it"):
        read_traffic(path)


def test_a_sidecar_that_is_a_device_is_not_read(tmp_path: Path) -> None:
    """/dev/null would end at once, and be called no JSON; others never do."""
    write_traffic(small(), tmp_path / "t.jsonl")
    sidecar_path(tmp_path / "t.jsonl").unlink()
    sidecar_path(tmp_path / "t.jsonl").symlink_to("/dev/null")
    with pytest.raises(InputError, match=r"meta\.json: found no regular file"):
        read_traffic(tmp_path / "t.jsonl")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_metadata_that_json_cannot_hold_writes_nothing(tmp_path: Path, suffix: str) -> None:
    """The sidecar comes second: refused only then, it would leave the rows without it."""
    with pytest.raises(InputError, match="metadata that JSON cannot hold"):
        write_traffic(replace(small(), features={}, metadata={"end_s": float("inf")}), tmp_path / f"t{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [" x", "x ", "priority ", " "])
def test_a_name_that_a_header_cannot_hold_is_not_written_as_csv(tmp_path: Path, name: str) -> None:
    """Readers take blanks off a header's names: the feature would come back as another, or twice."""
    traffic = replace(small(), features={name: np.array([1, 2])})
    with pytest.raises(InputError, match=r"csv: found feature name .*write \.jsonl or \.parquet") as caught:
        write_traffic(traffic, tmp_path / "t.csv")
    assert shown(name) in caught.value.message and not list(tmp_path.iterdir())
    write_traffic(traffic, tmp_path / "t.jsonl")
    assert list(read_traffic(tmp_path / "t.jsonl").features) == [name]


@pytest.mark.parametrize("name", ["t.txt", "t", "missing/t.csv"])
def test_a_bad_output_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="expected"):
        write_traffic(small(), tmp_path / name)


def test_a_full_disk_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_traffic(small(), tmp_path / "t.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello"])
def test_a_damaged_schedule_is_an_input_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "schedule.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"schedule\.parquet"):
        load_schedule(path)
    with pytest.raises(InputError, match="no such file"):
        load_schedule(tmp_path / "none.parquet")
