"""What the benchmark of HTTP replay reads from other load generators, which stand-ins play here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.replay.load_tools import Tool, aiperf, guidellm, measured

#: Requests 7 ms after the run's unknown start, each a little later than the one before.
AIPERF = """
args = dict(zip(sys.argv, sys.argv[1:]))
due = [json.loads(line)["timestamp"] for line in open(args["--input-file"])][: int(os.environ.get("MOST", "1000"))]
out = pathlib.Path(args["--artifact-dir"]); out.mkdir()
rows = [{"metadata": {"request_start_ns": int((7 + ms) * 1e6) + k * 1000}} for k, ms in enumerate(due)]
(out / "profile_export.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in reversed(rows)))
"""
#: 2 ms late, the first ten without the run's start.
GUIDELLM = """
words = [dict(pair.split("=", 1) for pair in word.split(",")) for word in sys.argv if word.startswith("kind=")]
(count,) = [int(word["count"]) for word in words if "count" in word]
(path,) = [word["path"] for word in words if word["kind"] == "json"]
starts = [0.5 if k < 10 else 1.7e9 + k for k in range(count)]
timings = [{"targeted_start": start, "request_start": 1.7e9 + k + 0.002} for k, start in enumerate(starts)]
found = [{"info": {"timings": each}} for each in timings]
pathlib.Path(path).write_text(json.dumps({"benchmarks": [{"requests": {"successful": found}}]}))
"""
ARRIVALS = np.arange(1, 201) * 1_000_000


def stand_in(folder: Path, text: str) -> Path:
    path = folder / "tool"
    path.write_text(f"#!/usr/bin/env python3\nimport json, os, pathlib, sys\n{text}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("tool", "text", "requests", "most_ms"),
    [pytest.param(aiperf, AIPERF, 200, 0.2, id="aiperf"), pytest.param(guidellm, GUIDELLM, 190, 2.0, id="guidellm")],
)
def test_lateness_is_read(tmp_path: Path, tool: Tool, text: str, requests: int, most_ms: float) -> None:
    late, _cpu_us = measured(tool, stand_in(tmp_path, text), 1, ARRIVALS)
    assert len(late) == requests
    assert late.max() == pytest.approx(most_ms, abs=0.01) and late.min() >= 0


def test_a_tool_that_fails_or_loses_requests_has_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOST", "150")
    with pytest.raises(RuntimeError, match="sent 150 of 200 requests"):
        measured(aiperf, stand_in(tmp_path, AIPERF), 1, ARRIVALS)
    with pytest.raises(RuntimeError, match="failed: no such model"):
        measured(aiperf, stand_in(tmp_path, "sys.exit('no such model')"), 1, ARRIVALS)
