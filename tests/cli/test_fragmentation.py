"""``latfix fragmentation`` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]


def test_made_up_traffic(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("fragmentation", "--turns", "300", "--seed", "1", "--out", str(tmp_path / "run"))
    said = " ".join(out.split())
    assert code == 0 and "torch's defaults" in said and "buddy" in said
    assert "made up, seed 1" in said and "Models, not measurements" in said
    again, json_out, _ = cli(
        "fragmentation", str(tmp_path / "run" / "trace.jsonl"), "--capacity", "4GiB", "--json", "-"
    )
    stored = json.loads((tmp_path / "run" / "fragmentation.json").read_text())
    assert again == 0 and json.loads(json_out)["policies"] == stored["policies"]


def test_policies_of_ones_own(cli: Cli) -> None:
    code, out, _ = cli(
        "fragmentation", "--turns", "50", "--policy", "max_split_size_mb:64", "--policy", "buddy", "--json", "-"
    )
    assert code == 0
    assert [policy["policy"] for policy in json.loads(out)["policies"]] == [
        "torch's defaults",
        "max_split_size_mb:64",
        "buddy",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--capacity", "lots"), "--capacity: found 'lots'; expected a size such as 80GiB"),
        (("--capacity", "-1GiB"), "--capacity: found '-1GiB'"),
        (("--capacity", "infGiB"), "--capacity: found 'infGiB'"),
        (("--turns", "0"), "--turns: found 0"),
        (("--policy", "best"), "--policy: found 'best'"),
        (("absent.jsonl", "--capacity", "1GiB"), "absent.jsonl: cannot read it"),
        (("absent.jsonl",), "--capacity: found none"),
    ],
)
def test_bad_input(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = cli("fragmentation", *arguments)
    assert (code, out) == (2, "") and err.startswith("latfix: ") and said in err and err.count("\n") == 1
