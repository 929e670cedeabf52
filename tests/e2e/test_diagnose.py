"""``latfix diagnose`` end to end: a real runner process, and a folder that keeps the contract."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from latfix.stages import STAGES
from tests.conftest import cli, succeeded, write_workload

pytestmark = pytest.mark.slow


LOUD = """
import os
import sys
import torch
from latfix import Request, Workload, span

print("imported")

class Loud(Workload):
    def load(self, device):
        print("loading", flush=True)
        os.write(1, b"straight to the descriptor\\n")
        os.chdir("/")

        class Model(torch.nn.Module):
            def forward(self, x):
                print("x" * 2000)
                if (x == 7).any():
                    raise ValueError("seven\\nis bad")
                return x * 2

        return Model()

    def prepare(self, request):
        value = int(request.features["value"])
        if value == 11:
            sys.stdin.readline()
            raise LookupError("nothing on stdin")
        if value == 13:
            sys.exit("enough")
        with span("store"):
            assert (self.folder / "workload.toml").exists()
        return torch.full((1 + value % 5,), float(value))

    def finish(self, output, request):
        sys.stderr.write("finishing\\n")
        if request.features["value"] == 17:
            raise KeyError("seventeen")
        return output.tolist()
"""


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str
    folder: Path
    document: dict[str, Any]

    def table(self, name: str) -> Any:
        return pq.read_table(self.folder / f"{name}.parquet")

    def meta(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        return document


N = 60


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A workload that prints, changes its folder, reads stdin and fails at times; unusual ids and features."""
    base = tmp_path_factory.mktemp("with a space")
    rows = [
        {
            "arrival_s": 0.4 * k / N,
            "id": f"ü/{k}\n😀",
            "value": k,
            "latency_ns": k * 3,
            "batch_id": f"b{k}",
            "status": 1.5,
            "error": "none",
            "priority": ["low", "normal", "high"][k % 3],
            "session": f"s{k % 4}",
        }
        for k in range(N)
    ]
    settings = {"max_batch_size": 4, "batch_window_ms": 20.0, "warmup_requests": 6}
    folder = write_workload(base / "a workload", adapter=LOUD, traffic=rows, runner=settings)
    elsewhere = base / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "torch.py").write_text("raise RuntimeError('a file of the working directory was imported')\n")
    with contextlib.chdir(elsewhere):
        code, out, err = cli("diagnose", folder, "--out", "the run", "--json", "-")
    return Run(code, out, err, elsewhere / "the run", json.loads(out) if code == 0 else {})


def test_it_ends_well(loud: Run) -> None:
    assert loud.code == 0, loud.err


def test_standard_output_is_the_document_and_nothing_else(loud: Run) -> None:
    assert loud.document["schema"] == "latfix.diagnosis/1"
    assert json.loads((loud.folder / "diagnosis.json").read_text()) == loud.document
    log = (loud.folder / "runner.log").read_text()
    assert "straight to the descriptor" in log and "finishing" in log


def test_the_folder_holds_what_the_contract_names(loud: Run) -> None:
    names = {path.name for path in loud.folder.iterdir()}
    parquet = {f"{name}.parquet" for name in ("requests", "batches", "samples", "events", "causes", "traffic")}
    assert names == {*parquet, "run.json", "diagnosis.json", "report.html", "runner.log"}
    meta = loud.meta()
    for key in ("schema", "versions", "machine", "settings", "seed", "started", "overhead", "workload"):
        assert meta[key] not in (None, "", {}), key
    assert meta["state"] == "complete"


def test_requests_have_the_columns_of_the_contract(loud: Run) -> None:
    table = loud.table("requests")
    expected = ["id", "arrival_ns", *(f"{stage}_ns" for stage in STAGES), "latency_ns", "status", "error", "batch_id"]
    assert set(expected) <= set(table.column_names)
    assert len(set(table.column_names)) == len(table.column_names)
    rows = table.to_pylist()
    measured = [row for row in rows if not row["warmup"]]
    # Features whose names are taken get a prefix; others keep their names.
    assert [row["value"] for row in measured] == list(range(N))
    assert [row["feature.latency_ns"] for row in measured] == [3 * k for k in range(N)]
    assert [row["feature.batch_id"] for row in measured] == [f"b{k}" for k in range(N)]
    assert {row["feature.status"] for row in measured} == {1.5}
    assert [row["id"] for row in measured] == [f"ü/{k}\n😀" for k in range(N)]


def test_stages_tile_the_latency_exactly(loud: Run) -> None:
    table = loud.table("requests")
    stages = np.sum([table.column(f"{stage}_ns").to_numpy() for stage in STAGES], axis=0)
    assert np.array_equal(stages, table.column("latency_ns").to_numpy())
    assert all((table.column(f"{stage}_ns").to_numpy() >= 0).all() for stage in STAGES)
    assert not table.column("h2d_ns").to_numpy().any(), "the CPU has no copies"
    assert not table.column("d2h_ns").to_numpy().any()


def test_arrivals_are_the_recorded_ones(loud: Run) -> None:
    table = loud.table("requests")
    arrival = table.column("arrival_ns").to_numpy()[~np.array(table.column("warmup").to_pylist())]
    recorded = np.array([round(0.4 * k / N * 1e9) for k in range(N)])
    assert np.abs(arrival - recorded).max() <= 1


def test_every_request_is_accounted_for_and_only_the_guilty_fail(loud: Run) -> None:
    rows = [row for row in loud.table("requests").to_pylist() if not row["warmup"]]
    assert len(rows) == N
    failed = {row["value"]: row["error"] for row in rows if row["status"] != "ok"}
    assert failed == {
        7: "the model raised ValueError: seven is bad (adapter.py:18)",
        11: "prepare raised LookupError: nothing on stdin (adapter.py:27)",
        13: "prepare raised SystemExit: enough (adapter.py:29)",
        17: "finish raised KeyError: 'seventeen' (adapter.py:37)",
    }
    assert loud.document["requests"] == {"ok": N - 4, "error": 4, "timeout": 0, "shed": 0}
    assert Counter(row["status"] for row in rows) == {"ok": N - 4, "error": 4}


def test_warm_up_is_recorded_marked_and_left_out(loud: Run) -> None:
    rows = loud.table("requests").to_pylist()
    warm = [row for row in rows if row["warmup"]]
    assert [row["index"] for row in warm] == [-6, -5, -4, -3, -2, -1]
    assert all(row["arrival_ns"] < 0 for row in warm)
    assert sum(loud.document["requests"].values()) == N


def test_batches_belong_to_their_requests(loud: Run) -> None:
    batches = {row["batch_id"]: row for row in loud.table("batches").to_pylist()}
    served = [row for row in loud.table("requests").to_pylist() if row["batch_id"] >= 0]
    sizes = Counter(row["batch_id"] for row in served)
    for batch_id, members in sizes.items():
        assert batches[batch_id]["size"] == members
    assert max(sizes.values()) > 1, "nothing was batched"
    retried = [row for row in batches.values() if row["retried"]]
    assert retried and all(row["size"] >= 1 for row in retried)


def test_events_are_of_known_kinds_and_errors_among_them(loud: Run) -> None:
    events = loud.table("events").to_pylist()
    kinds = Counter(row["kind"] for row in events)
    assert set(kinds) <= {"gc", "compile", "span", "spike", "error", "note"}
    assert kinds["span"] >= N - 2
    assert sorted(row["request"] for row in events if row["kind"] == "error") == [7, 11, 13, 17]


def test_samples_hold_the_probes(loud: Run) -> None:
    series = set(loud.table("samples").column("series").to_pylist())
    assert {"process.rss_bytes", "host.cpu_busy_ns", "runner.in_flight", "poll.process_ns"} <= series
    assert "other.all.spent_ns" in series, "other processes on the cores"
    assert loud.meta()["probes"]["nvml"].startswith("NVML: ")


def test_causes_sum_to_the_excess(loud: Run) -> None:
    document = loud.document
    total = sum(cause["tail_ms"] for cause in document["causes"])
    assert total == pytest.approx(document["tail"]["excess_ms"], rel=1e-9, abs=1e-9)
    tails = [cause["tail_ms"] for cause in document["causes"]]
    assert tails == sorted(tails, reverse=True)
    ids = {row["request_id"] for row in loud.table("causes").to_pylist()}
    assert ids <= {row["id"] for row in loud.table("requests").to_pylist()}
    assert set(loud.table("causes").column_names) == {"request_id", "cause", "own_ns", "propagated_ns", "class"}


def test_the_ledger_is_conserved_for_each_request(loud: Run) -> None:
    entries: Counter[str] = Counter()
    for row in loud.table("causes").to_pylist():
        entries[row["request_id"]] += row["own_ns"] + row["propagated_ns"]
    latency = {
        row["id"]: row["latency_ns"]
        for row in loud.table("requests").to_pylist()
        if row["status"] == "ok" and not row["warmup"]
    }
    references = {latency[name] - entries[name] for name in latency}
    assert len(references) == 1, "latency less its entries is the same reference for every request"


def test_the_cost_of_latfix_itself_is_stated(loud: Run) -> None:
    assert loud.document["overhead"]["per_request_us"] > 0
    assert 0 < loud.document["overhead"]["core_share"] < 1


def test_the_report_is_of_this_run(loud: Run, tmp_path: Path) -> None:
    html = (loud.folder / "report.html").read_text()
    assert "<html" in html and "</html>" in html
    out = succeeded(cli("report", loud.folder, "--out", tmp_path / "again", "--json", "-"))
    again = json.loads(out)
    assert again.pop("source") | {"path": ""} == loud.document["source"] | {"path": ""}, "the path is as given"
    assert again == {key: each for key, each in loud.document.items() if key != "source"}, "the same record"


def test_gates_turn_it_into_an_exit_code(loud: Run) -> None:
    known = loud.document["trustworthy"]  # if the machine delayed the replayer, no gate is evaluated
    assert cli("report", loud.folder, "--gate", "p50<60s")[0] == (0 if known else 3)
    assert cli("report", loud.folder, "--gate", "p50<1us")[0] == (1 if known else 3)


SLOW = """
import time
import torch
from latfix import Request, Workload

class Slow(Workload):
    def load(self, device):
        class Model(torch.nn.Module):
            def forward(self, x):
                time.sleep(0.03)
                return x
        return Model()

    def prepare(self, request):
        return torch.ones(1)
"""


@pytest.fixture(scope="module")
def overloaded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model six times too slow for its traffic."""
    base = tmp_path_factory.mktemp("overloaded")
    rows = [{"arrival_s": k * 0.005} for k in range(60)]
    folder = write_workload(base / "w", adapter=SLOW, traffic=rows)
    code, out, err = cli("diagnose", folder, "--out", base / "run", "--json", base / "d.json")
    return Run(code, out, err, base / "run", json.loads((base / "d.json").read_text()))


def test_a_slow_model_does_not_delay_the_sending(overloaded: Run) -> None:
    table = overloaded.table("requests")
    dispatch, latency = (table.column(name).to_numpy() for name in ("dispatch_ns", "latency_ns"))
    # Closed-loop sending would make dispatch as long as latency; each request waits for those before it.
    assert np.median(dispatch) < 0.02 * np.median(latency)
    assert dispatch.max() < 0.2 * latency.max()


def test_latency_counts_from_the_scheduled_arrival(overloaded: Run) -> None:
    table = overloaded.table("requests")
    arrival, latency = (table.column(name).to_numpy() for name in ("arrival_ns", "latency_ns"))
    # One after the other at 30 ms each: the k-th ends after k + 1 of them, regardless of its send time.
    ends = arrival + latency
    assert (np.diff(ends) >= 29_000_000).all()
    assert latency[-1] >= 60 * 30_000_000 - arrival[-1]
    waiting = (table.column("queue_ns").to_numpy() / np.maximum(latency, 1))[10:]
    assert waiting.min() > 0.5


def test_the_summary_is_for_people(overloaded: Run) -> None:
    assert overloaded.code == 0
    assert "p99" in overloaded.out and "queue" in overloaded.out
    assert "loading the model" in overloaded.err


def test_deadlines_and_a_full_queue_count_apart(tmp_path: Path) -> None:
    rows = [{"arrival_s": k * 0.002, **({"deadline_ms": 40} if k % 2 else {})} for k in range(40)]
    folder = write_workload(tmp_path / "w", adapter=SLOW, traffic=rows, runner={"max_queue": 8})

    out = succeeded(cli("diagnose", folder, "--out", tmp_path / "run", "--json", "-"))
    counts = json.loads(out)["requests"]
    assert sum(counts.values()) == 40 and counts["error"] == 0
    assert counts["ok"] and counts["timeout"] and counts["shed"]
    rows = pq.read_table(tmp_path / "run" / "requests.parquet").to_pylist()
    assert all(row["index"] % 2 == 1 for row in rows if row["status"] == "timeout")
    assert all(row["latency_ns"] == sum(row[f"{stage}_ns"] for stage in STAGES) for row in rows)
