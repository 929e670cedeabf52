"""``latfix fragmentation`` from the command line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tests.cli.conftest import refused
from tests.conftest import cli, succeeded


def test_made_up_traffic(tmp_path: Path) -> None:
    code, out, _ = cli("fragmentation", "--turns", "300", "--seed", "1", "--out", str(tmp_path / "run"))
    message = " ".join(out.split())
    assert code == 0 and "torch's defaults" in message and "buddy" in message
    assert "made up, seed 1" in message and "models, not measurements" in message
    again, json_out, _ = cli(
        "fragmentation", str(tmp_path / "run" / "trace.jsonl"), "--capacity", "4GiB", "--json", "-"
    )
    stored = json.loads((tmp_path / "run" / "fragmentation.json").read_text())
    assert again == 0 and json.loads(json_out)["policies"] == stored["policies"]


def test_policies_of_ones_own() -> None:
    out = succeeded(
        cli("fragmentation", "--turns", "50", "--policy", "max_split_size_mb:64", "--policy", "buddy", "--json", "-")
    )
    assert [policy["policy"] for policy in json.loads(out)["policies"]] == [
        "torch's defaults",
        "max_split_size_mb:64",
        "buddy",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--capacity", "lots"), "--capacity: found 'lots'; expected a size such as 80GiB"),
        (("--capacity", "-1GiB"), "--capacity: found '-1GiB'"),
        (("--capacity", "infGiB"), "--capacity: found 'infGiB'"),
        (("--turns", "0"), "--turns: found 0"),
        (("trace.jsonl", "--turns", "9"), "--turns: found trace.jsonl, which is read"),
        (("--policy", "best"), "--policy: found 'best'"),
        (("absent.jsonl", "--capacity", "1GiB"), "absent.jsonl: cannot read it"),
        (("absent.jsonl",), "absent.jsonl: cannot read it"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    refused(cli("fragmentation", *arguments), message)


def test_a_trace_without_the_available_memory(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"alloc": 0, "bytes": 512}\n')
    refused(cli("fragmentation", tmp_path / "trace.jsonl"), "--capacity: found none")


ALLOC = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 0}
SEGMENT = {"device": 0, "address": 0, "blocks": [{"size": 512, "state": "active_allocated"}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "trace:1: found values nested too deeply"),
        (b'{"alloc": 1, "bytes": 5, "t_us": 1' + b"0" * 400 + b"}", "trace:1: found t_us = 1"),
        ('{"alloc": 1, "bytes": 5, "by": "\u2028"}\n{}'.encode(), "trace:2: found {}"),
        (pickle.dumps({"device_traces": [[ALLOC | {"time_us": "x"}]]}), "found entries of another shape"),
        (pickle.dumps({"device_traces": [[ALLOC | {"time_us": float("nan")}]]}), "found entries of another shape"),
        (pickle.dumps({"device_traces": [[ALLOC | {"time_us": 10**400}]]}), "found entries of another shape"),
        (pickle.dumps({"device_traces": [[ALLOC | {"size": 10**400}]]}), "found entries of another shape"),
        (pickle.dumps({"device_traces": [[ALLOC]], "segments": [SEGMENT | {"stream": "x"}]}), "of another shape"),
        (pickle.dumps({"device_traces": [[5], None]}), "found entries of another shape"),
        (pickle.dumps({"device_traces": [5]}), "found entries of another shape"),
        (b"\x80\x04\x8d" + b"\xff" * 8, "found no readable snapshot"),  # a text longer than can be
        (b"\x80\x04}]Ns.", "found no readable snapshot"),  # a list as a key
    ],
    ids=range(12),
)
def test_a_damaged_trace_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    """Each of these raises another of Python's errors where it is read."""
    (tmp_path / "trace").write_bytes(content)
    err = refused(cli("fragmentation", tmp_path / "trace", "--capacity", "1GiB"), message)
    assert len(err) < len(str(tmp_path)) + 400


def test_a_device_is_not_read(tmp_path: Path) -> None:
    """/dev/null would end at once, and be called empty; others never do."""
    (tmp_path / "trace").symlink_to("/dev/null")
    refused(cli("fragmentation", tmp_path / "trace"), "found no regular file")


def test_a_recorded_stall_is_answered_without_further_questions(tmp_path: Path) -> None:
    """A segment that stays split: what is free in it is enough, and not in one piece."""
    mib = 1 << 20

    def entry(action: str, address: int, size: int) -> dict[str, object]:
        return {"action": action, "addr": address, "size": size * mib, "stream": 0, "time_us": 0}

    history = [
        *(entry(action, 0, 60) for action in ("segment_alloc", "alloc", "free_requested", "free_completed")),
        entry("alloc", 0, 20),
        entry("segment_alloc", 100 * mib, 40),
        *(entry(action, 100 * mib, 40) for action in ("alloc", "free_requested", "free_completed", "segment_free")),
        entry("segment_alloc", 200 * mib, 40),
        entry("alloc", 200 * mib, 40),
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [history], "segments": []}))
    code, out, _ = cli("fragmentation", str(path), "--json", "-")
    found = json.loads(out)
    assert code == 0 and found["capacity_bytes"] == 100 * mib and found["recorded"]["retries"] == 1
    assert found["answer"].startswith("torch's defaults: ")
