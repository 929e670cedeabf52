"""The commands that a report tells its reader to run next."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from latfix.reports.next_commands import optimize_command, replay_command, workload_argument


@pytest.mark.parametrize(
    ("meta", "argument"),
    [
        ({"workload": "ranker", "workload_folder": "/srv/models/my ranker"}, "/srv/models/my ranker"),
        ({"workload": "ranker", "workload_folder": "/lib/latfix/sample_workloads/recommender"}, "recommender"),
        ({"workload": "ranker"}, "ranker"),
        ({"workload": "ranker", "workload_folder": None}, "ranker"),
        ({}, ""),
    ],
)
def test_the_workload_is_named_as_a_user_would_type_it(meta: dict[str, Any], argument: str) -> None:
    assert workload_argument(meta) == argument


def test_a_shell_reads_each_argument_whole() -> None:
    evil = "a'; rm -rf $HOME #"
    assert shlex.split(optimize_command(evil)) == ["latfix", "optimize", evil]
    assert shlex.split(replay_command(evil, "my plan.toml")) == ["latfix", "diagnose", evil, "--plan", "my plan.toml"]
