"""The injectors' log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from latfix.errors import InputError
from latfix.runners.selftest.faults import fault_log as module
from latfix.runners.selftest.faults.fault_log import LOG_VARIABLE, Fault, FaultLog, Stopwatch, read_faults


def _fault(number: int, start: int) -> Fault:
    name, end = f"r{number:06d}", start + 7
    return Fault(cause="python.gc", kind="gc", where="model", request=name, start_ns=start, end_ns=end, ns=1_234_567)


def test_faults_are_read_in_order_of_time_without_a_truncated_last_line(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    log = FaultLog(file)
    for fault in (_fault(2, 200), _fault(1, 100), _fault(3, 300)):
        log.add(fault)
    log.close()
    assert read_faults(file) == [_fault(1, 100), _fault(2, 200), _fault(3, 300)]
    file.write_text(file.read_text()[:-20])
    assert read_faults(file) == [_fault(1, 100), _fault(2, 200)]


@pytest.mark.parametrize(("delay_ms", "ms"), [(0, 10), (4, 6), (6, 5), (12, 5)])
def test_a_fault_lasts_no_less_than_its_processor_time(
    monkeypatch: pytest.MonkeyPatch, delay_ms: int, ms: int
) -> None:
    """Ten milliseconds, five of them computing; the kernel may report a longer wait for a core."""
    clocks = {"perf_counter_ns": [0, 10_000_000], "thread_time_ns": [0, 5_000_000]}
    # The injectors' clock only: threads that other tests left running read the real one.
    clock = SimpleNamespace(**{name: iter(values).__next__ for name, values in clocks.items()})
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "run_delay_ns", iter([0, delay_ms * 1_000_000]).__next__)
    assert Stopwatch().stop().ns == ms * 1_000_000


def test_lines_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    logs = [FaultLog(tmp_path / "f.jsonl") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for k, log in enumerate(logs):
            pool.submit(lambda k=k, log=log: list(map(log.add, (_fault(k, n) for n in range(200)))))  # type: ignore[misc]
    found = read_faults(tmp_path / "f.jsonl")
    assert len(found) == 800 and set(found) == {_fault(k, n) for k in range(4) for n in range(200)}
    for log in logs:
        log.close()


@pytest.mark.parametrize("line", ['{"cause": "x"}\n', "nonsense\n", "[1]\n", '{"cause":"a","ms":"no"}\n'])
def test_something_else_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(line)
    with pytest.raises(InputError, match=r"f\.jsonl:1: found no fault"):
        read_faults(file)


def test_without_a_file_nothing_is_logged(tmp_path: Path) -> None:
    FaultLog.from_environment({}).add(_fault(1, 1))
    with pytest.raises(InputError, match="cannot be read"):
        read_faults(tmp_path / "none")
    named = FaultLog.from_environment({LOG_VARIABLE: str(tmp_path / "g.jsonl")})
    named.add(_fault(3, 3))
    named.close()
    assert read_faults(tmp_path / "g.jsonl") == [_fault(3, 3)]
