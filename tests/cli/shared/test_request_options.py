"""``--request`` and ``--slowest`` of ``diagnose`` and ``report``: what is shown, written and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from latfix.traffic.schedule import Traffic
from tests.cli.conftest import MS, Reached, refused, serve_one_by_one, write_run
from tests.conftest import cli, succeeded, write_workload
from tests.reports.conftest import in_one_line

N = 60
HOSTILE = "\x1b[31m<b>[red]\u202ex\n"


def _write(folder: Path, *, finished: bool = True, lost: int = 0) -> Path:
    """A run of one worker; request 20's compute takes 300 ms, the others' 5."""
    ids = [HOSTILE if k == 40 else f"r{k:03d}" for k in range(N)]
    features = {"name": np.array([HOSTILE] * N, dtype=object), "tokens": np.arange(N)}
    traffic = Traffic.plain(np.arange(N, dtype=np.int64) * 10 * MS, ids=ids, features=features)
    rows, batches = serve_one_by_one([(300 if k == 20 else 5) * MS for k in range(N)], prepare_ns=MS)
    keep = slice(0, N - lost)
    return write_run(folder, rows[keep], batches=batches[keep], traffic=traffic, finished=finished)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return _write(tmp_path / "run")


def test_a_request_is_explained_before_the_diagnosis(run: Path) -> None:
    out = succeeded(cli("report", run, "--request", "r025"))
    _, _, rest = out.partition("Request r025")
    story, _, diagnosis = rest.partition("w on cpu")
    assert "report" in diagnosis
    text = in_one_line(story)
    assert "batch 20 (1)" in text
    assert "= 0 ns" in text
    assert "Request" not in cli("report", run)[1]
    out = cli("report", run, "--request", "r030", "--request", "r002", "--request", "r030")[1]
    assert out.count("Request r030") == 1 and out.index("Request r030") < out.index("Request r002")


def test_the_slowest_are_listed(run: Path) -> None:
    out = succeeded(cli("report", run, "--slowest", "3"))
    listed = out[out.index("The 3 slowest requests") :]
    assert listed.index("r020") < listed.index("r021") < listed.index("r022")
    assert "r023" not in listed
    assert "behind batch 20 (1)" in in_one_line(listed)


def test_the_document_has_only_requested_stories(run: Path) -> None:
    plain = json.loads(cli("report", run, "--json", "-")[1])
    assert "requests_explained" not in plain
    out = succeeded(cli("report", run, "--json", "-", "--request", "r025", "--slowest", "2"))
    document = json.loads(out)
    stories = document.pop("requests_explained")
    assert document == plain
    assert [story["id"] for story in stories] == ["r025", "r020", "r021"]
    assert all(story["difference_ns"] == 0 for story in stories)
    (holders,) = [wait["holders"] for wait in stories[0]["waits"] if wait["resource"] == "queue"]
    assert holders[0]["label"] == "20"
    assert "requests_explained" not in json.loads((run / "diagnosis.json").read_text())
    both = json.loads(cli("report", run, "--json", "-", "--request", "r021", "--slowest", "1000")[1])
    ids = [story["id"] for story in both["requests_explained"]]
    assert ids[:3] == ["r021", "r020", "r022"] and len(ids) == N, "each once, and no more than there are"


def test_hostile_ids_can_be_requested_and_are_shown_literally(run: Path) -> None:
    out = succeeded(cli("report", run, "--request", HOSTILE))
    assert "\x1b" not in out and "\u202e" not in out
    assert "Request \\x1b[31m<b>[red]\\u202ex\\n" in out
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<b>[red]" not in page


@pytest.mark.parametrize("slowest", ["0", "-1", "1001", "x", "1.5", ""])
def test_counts_that_are_refused(run: Path, slowest: str) -> None:
    refused(cli("report", run, "--slowest", slowest), "--slowest")


def test_an_unknown_id_is_refused_and_nothing_is_written(run: Path) -> None:
    before = {path.name for path in run.iterdir()}
    refused(cli("report", run, "--request", "r021", "--request", "r21"), "found 'r21'", "'r021'")
    assert {path.name for path in run.iterdir()} == before


def test_a_killed_run_can_be_explained(tmp_path: Path) -> None:
    run = _write(tmp_path / "killed", finished=False, lost=10)
    out = succeeded(cli("report", run, "--request", "r025", "--request", "r055", "--slowest", "2"))
    assert "batch 20 (1)" in in_one_line(out)
    assert "The run ended while it was in queue after 96.0 ms" in in_one_line(out)
    early = _write(tmp_path / "early", finished=False, lost=50)  # r055 had not arrived
    out = cli("report", early, "--request", "r055")[1]
    assert "Request r055  not recorded" in out
    assert "when the run stopped" in in_one_line(out)


@pytest.mark.usefixtures("no_runner")
def test_diagnose_refuses_unknown_ids_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    traffic = [{"arrival_s": k * 0.01, "id": f"call-{k}"} for k in range(20)]
    workload = write_workload(tmp_path / "w", traffic=traffic)
    for options, message in (
        (("--request", "call-99"), "'call-9'"),
        (("--request", "call-15", "--limit", "10"), "call-15"),
        (("--slowest", "0"), "--slowest"),
    ):
        refused(cli("diagnose", workload, *options), message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w"]
    with pytest.raises(Reached):
        cli("diagnose", workload, "--request", "call-15")


@pytest.mark.slow
def test_diagnose_explains_what_it_replayed(tmp_path: Path) -> None:
    adapter = """
        import time
        import torch
        from latfix import Workload, span

        class Slow(Workload):
            def load(self, device):
                return torch.nn.Identity()

            def prepare(self, request):
                if request.id == "slow":
                    with span("store"):
                        time.sleep(0.3)
                return torch.zeros(2)
    """
    traffic = [{"arrival_s": k * 0.02, "id": "slow" if k == 25 else f"r{k}"} for k in range(40)]
    workload = write_workload(tmp_path / "w", adapter=adapter, traffic=traffic)
    arguments = ("diagnose", workload, "--out", tmp_path / "out", "--json", "-", "--request", "r27", "--slowest", "1")
    out = succeeded(cli(*arguments))
    victim, culprit = json.loads(out)["requests_explained"]
    assert (victim["id"], culprit["id"]) == ("r27", "slow")
    assert victim["difference_ns"] == culprit["difference_ns"] == 0
    (pool,) = [wait for wait in victim["waits"] if wait["resource"] == "prepare"]
    slow = next(holder for holder in pool["holders"] if holder["label"] == "slow")
    assert slow["causes"][0]["name"] == "external.dependency"
    (prepare,) = [stage for stage in culprit["stages"] if stage["stage"] == "prepare"]
    assert [event["what"] for event in prepare["happenings"] if event["kind"] == "span"] == ["store"]
