"""Schedule error and CPU cost of load generators for language models: AIPerf, guidellm.

Each is an executable of an environment of its own, because their dependencies conflict with latfix's extras.
"""

from __future__ import annotations

import json
import resource
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: A run of this many requests shows the CPU time of starting and ending.
_FEW = 100
_START_S = 120
_PROMPT = "hello there"

_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "</s>": 1}, "unk_token": "[UNK]"},
}
_TOKENIZER_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "</s>"}

#: Runs an executable in a folder that holds a tokenizer; the lateness of each request in milliseconds.
Tool = Callable[[Path, int, np.ndarray, Path], np.ndarray]


def aiperf(executable: Path, port: int, arrival_ns: np.ndarray, folder: Path) -> np.ndarray:
    """AIPerf replays the schedule. When it began is not recorded: the least lateness counts as zero, in its favor."""
    due_ms = arrival_ns / 1e6
    rows = [{"timestamp": round(due, 3), "text_input": _PROMPT, "output_length": 1} for due in due_ms.tolist()]
    (folder / "trace.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    _run(
        *(executable, "profile", "-m", "m", "--url", f"http://127.0.0.1:{port}", "--endpoint-type", "chat"),
        *("--tokenizer", folder, "--use-server-token-count", "--input-file", folder / "trace.jsonl"),
        *("--custom-dataset-type", "mooncake_trace", "--fixed-schedule", "--ui", "none"),
        *("--artifact-dir", folder / "out"),
        seconds=due_ms[-1] / 1e3,
    )
    records = map(json.loads, (folder / "out" / "profile_export.jsonl").read_text().splitlines())
    began_ns = np.array(sorted(record["metadata"]["request_start_ns"] for record in records))
    late = began_ns / 1e6 - due_ms[: len(began_ns)]
    return np.asarray(late - late.min())


def guidellm(executable: Path, port: int, arrival_ns: np.ndarray, folder: Path) -> np.ndarray:
    """guidellm sends at random times of its own, of the same rate.

    In about the first second some of these times are recorded without the run's start: their lateness is NaN.
    """
    row = f"{json.dumps({'prompt': _PROMPT, 'output_tokens_count': 1})}\n"
    (folder / "prompts.jsonl").write_text(row * len(arrival_ns))
    _run(
        *(executable, "run", "--disable-console", "--tokenizer", f"kind=hf_auto,model={folder}"),
        *("--backend", f"kind=openai_http,target=http://127.0.0.1:{port},model=m,stream=false"),
        *("--profile", f"kind=poisson,rate={len(arrival_ns) / (arrival_ns[-1] / 1e9):.3f}"),
        *("--constraint", f"kind=max_requests,count={len(arrival_ns)}"),
        *("--data", f"kind=json_file,path={folder / 'prompts.jsonl'}"),
        *("--output", f"kind=json,path={folder / 'out.json'}"),
        seconds=arrival_ns[-1] / 1e9,
    )
    (found,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    timings = [request["info"]["timings"] for request in found["requests"]["successful"]]
    due_s, begun_s = (np.array([timing[key] for timing in timings]) for key in ("targeted_start", "request_start"))
    return np.where(due_s > 1e9, begun_s - due_s, np.nan) * 1e3


def measured(tool: Tool, executable: Path, port: int, arrival_ns: np.ndarray) -> tuple[np.ndarray, float]:
    """Lateness of each request in milliseconds, and CPU microseconds per request beyond those of a short run.

    :raises RuntimeError: the executable failed, or did not send every request.
    """
    runs: list[tuple[np.ndarray, float]] = []
    for schedule in (arrival_ns[:_FEW], arrival_ns):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
            (folder / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG))
            before = _cpu_s()
            late = tool(executable, port, schedule, folder)
            runs.append((late, _cpu_s() - before))
            if len(late) != len(schedule):
                raise RuntimeError(f"{executable.name} sent {len(late)} of {len(schedule)} requests")
    (_, few_s), (late, all_s) = runs
    return late[~np.isnan(late)], (all_s - few_s) / (len(arrival_ns) - _FEW) * 1e6


def _run(*command: Any, seconds: float) -> None:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_START_S + 3 * seconds)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{words[0]} did not end") from error
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed: {(done.stderr or done.stdout)[-300:]}")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
