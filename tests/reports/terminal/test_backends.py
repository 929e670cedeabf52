"""The table of backends: what differs stands out, what is missing words why, and nothing from outside is markup."""

from __future__ import annotations

import re
from typing import Any

import pytest

from latfix.reports.terminal.backends import render_backends
from latfix.results.answer_check import BackendsTable
from tests.reports.conftest import in_one_line, printed, unharmed


def row(backend: str, **more: Any) -> dict[str, Any]:
    rate = {"value": 120.0, "ci95": [110.0, 130.0]}
    known = {"load_s": 1.5, "rounds": 9, "single_rps": rate, "batched_rps": rate, "agreeing": 8, "compared": 8}
    return {"backend": backend, "convert_s": None, "missing": "", "deviation": 0.0, **known, **more}


def faster(value: float, lo: float, hi: float) -> dict[str, Any]:
    estimate = {"value": value, "ci95": [lo, hi]}
    return {"single_speedup": estimate, "batched_speedup": estimate}


def shown(*rows: dict[str, Any], ascii_only: bool = False, color: bool = False, width: int = 160, **more: Any) -> str:
    document = {
        "workload": "demo",
        "entry": "adapter.py:Demo",
        "device": "cpu",
        "batch_size": 8,
        "requests": 24,
        "threads": 1,
        "versions": {"torch": "2.13.0"},
        "inputs": ["x: float32 (batch, length), normal values"],
        "backends": [row("eager torch"), *rows],
        **more,
    }
    encoding = "ascii" if ascii_only else "utf-8"
    return printed(render_backends(BackendsTable.from_json(document)), width=width, color=color, encoding=encoding)


def test_batches_that_serve_fewer_requests_are_named() -> None:
    fewer = {"batched_rps": {"value": 60.0, "ci95": [50.0, 70.0]}}
    text = in_one_line(shown(row("ONNX Runtime", **fewer, **faster(1.0, 0.9, 1.1))))
    assert "in batches of 8: fewer requests than one at a time with ONNX Runtime" in text
    assert "fewer requests" not in shown()


def test_a_disturbed_machine_is_said() -> None:
    assert "! The machine was disturbed: others used 1.2 cores." in shown(disturbed="others used 1.2 cores")
    assert "disturbed" not in shown()


def test_every_figure_is_there() -> None:
    text = shown(row("ONNX Runtime", convert_s=31.0, deviation=3e-7, **faster(2.5, 2.1, 2.9)))
    for words in (
        "requests, one at a time",
        "requests, in batches of 8",
        "120/s [110, 130]",
        "1.50 s",
        "* 31.0 s",
        "x2.50 [2.10, 2.90]",
        "all 8 agree; differ by 3.0e-07 of the largest number",
        "Answers, compared with those of eager torch",
        "24 requests of the traffic in 9 alternating rounds",
        "1 thread; torch 2.13.0",
        "* one-time conversion before it",
        "input x: float32 (batch, length), normal values",
    ):
        assert words in text, (words, text)
    assert "converting" not in shown()


@pytest.mark.parametrize(
    ("answers", "words", "style"),
    [
        ({"agreeing": 3, "deviation": 0.5}, "3 of 8 agree; differ by 0.50 of the largest number", "1;31"),
        ({"deviation": 0.02}, "all 8 agree; differ by 0.020", "33"),
        ({"agreeing": 0, "deviation": None}, "0 of 8 agree; differ in shape, kind or whole numbers", "1;31"),
    ],
)
def test_answers_that_differ_stand_out(answers: dict[str, Any], words: str, style: str) -> None:
    text = shown(row("TorchScript", **answers, **faster(9.0, 8.0, 10.0)), color=True)
    assert f"\x1b[{style}m{words}" in text, text


def test_a_ratio_is_colored_only_where_it_is_decided() -> None:
    assert "\x1b[32mx2.00 [1.50, 2.50]" in shown(row("a", **faster(2.0, 1.5, 2.5)), color=True)
    assert "\x1b[31mx0.500 [0.400, 0.600]" in shown(row("a", **faster(0.5, 0.4, 0.6)), color=True)
    assert "\x1b[3" not in shown(row("a", **faster(1.1, 0.9, 1.3)), color=True).split("x1.10")[0].rpartition("\n")[2]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_interval_is_cut_and_the_fastest_is_named(width: int) -> None:
    slow = row("torch.export", convert_s=2.7, deviation=0.0, **faster(0.586, 0.0372, 9.23))
    fast = row("ONNX Runtime", convert_s=0.0065, single_rps={"value": 839.0, "ci95": [504.0, 1400.0]})
    wrong = row("OpenVINO", agreeing=3, **faster(9.0, 8.0, 9.9))
    text = shown(slow, fast | faster(2.5, 2.1, 2.9), wrong, width=width)
    unharmed(text, width)
    assert "839/s [504, 1,400]" in text and "x0.586 [0.0372, 9.23]" in text
    assert re.search(r"^torch.export\b", text, re.M) and ("* 6.50 ms" in text) == (width > 60)
    assert "one at a time: fastest is ONNX Runtime, x2.50 [2.10, 2.90] of eager torch" in in_one_line(text)
    assert "in batches of 8: undecided, torch.export may" not in text
    text = in_one_line(shown(row("a", **faster(1.1, 0.9, 1.3)), width=width))
    assert "in batches of 8: undecided, a may be the fastest, x1.10 [0.900, 1.30]" in text
    assert "no backend with the same answers is faster than eager torch" in in_one_line(shown(wrong, width=width))


def test_a_shared_reason_is_shown_once() -> None:
    gone = {"convert_s": None, "load_s": None, "missing": "no way there"}
    text = shown({"backend": "TorchScript", **gone}, {"backend": "OpenVINO", **gone})
    assert "TorchScript, OpenVINO: no way there" in text and text.count("no way there") == 1
    shown(row("a", single_rps={"value": 3.0, "ci95": None}, **faster(2.0, 1.5, 2.5)), ascii_only=True)


def test_a_model_that_answers_differently_in_a_batch_is_reported() -> None:
    odd = {"request": "r[bold]7", "output": "y", "agreement": 0.25, "deviation": 0.5}
    output = {"name": "y", "kind": "steps", "told": "declared", "bound": 0.2, "varies": 0.0, "follows": [0]}
    answers = {"outputs": [output], "compared": 24, "differing": 19, "padded": True, "example": odd}
    text = " ".join(shown(answers=answers).split())
    assert (
        "This service answers a padded request differently than the request alone: request 'r[bold]7', output 'y': "
        "deviation 0.50, bound 0.20, 25 % agree; 19 of 24 requests."
    ) in text
    assert "\\n" not in text and "Answers are compared as steps ('y', declared)." in text
