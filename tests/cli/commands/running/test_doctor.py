"""``latfix doctor`` on any machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latfix.runners.doctor import examine as examining
from latfix.runners.doctor import torch_facts as facts
from tests.conftest import cli, succeeded

_TORCH = {
    "version": "2.13.0",
    "cpu_capability": "AVX2",
    "threads": 2,
    "mkldnn": True,
    "built_for_cuda": None,
    "cuda": False,
    "devices": [],
}


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "torch_facts", lambda: _TORCH)


def test_every_finding_is_whole() -> None:
    code, out, _ = cli("doctor", "--seconds", "0.05", "--json", "-")
    document = json.loads(out)
    assert code == 0 and document["schema"] == "latfix.doctor/1"
    assert len({finding["id"] for finding in document["findings"]}) == len(document["findings"]) > 15
    for finding in document["findings"]:
        assert finding["id"].startswith(finding["area"] + ".") and finding["found"]
        assert finding["state"] in ("ok", "costs", "missing", "note", "unknown")
        assert finding["costs"] or finding["state"] not in ("costs", "missing")
    states = [finding["state"] for finding in document["findings"]]
    assert document["states"] == {state: states.count(state) for state in set(states)}


def test_what_costs_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "torch_facts", lambda: {**_TORCH, "mkldnn": False})
    out = succeeded(cli("doctor", "--seconds", "0"))
    assert out.index("Costs latency or makes it jitter") < out.index("Good to know") < out.index("\nOK\n")
    assert "slow paths" in " ".join(out.split()) and "install a build of torch with oneDNN" in " ".join(out.split())
    assert "nothing was changed" in out
    assert "reading the clock" not in out, "--seconds 0 leaves watching out"


def test_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "torch_facts", lambda: {"error": "libcudart.so.13: cannot open"})
    code, out, _ = cli("doctor", "--seconds", "0")
    assert code == 0 and "libcudart.so.13: cannot open" in " ".join(out.split())


def test_out(tmp_path: Path) -> None:
    code, _, _ = cli("doctor", "--seconds", "0", "--out", str(tmp_path / "new"))
    assert code == 0 and json.loads((tmp_path / "new" / "doctor.json").read_text())["findings"]


def test_bad_options(tmp_path: Path) -> None:
    code, out, err = cli("doctor", "--seconds", "-1")
    assert (code, out) == (2, "") and err == "latfix: --seconds: found -1; expected a number from 0 to 3600\n"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    assert cli("doctor", "--out", str(tmp_path / "full"))[0] == 2


def test_a_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert facts.torch_facts() == {"error": "exit code 1"}
    (tmp_path / "python").write_text("#!/bin/sh\nprintf 'caf\\351.so: cannot open' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert facts.torch_facts() == {"error": "caf\ufffd.so: cannot open"}, "not UTF-8"


@pytest.mark.slow
def test_torch_in_its_own_process() -> None:
    import torch

    found = facts.torch_facts()
    assert found["version"] == torch.__version__ and found["cuda"] is torch.cuda.is_available()


def test_a_foreign_cudnn_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """torch loads, and refuses the library when it is asked for its version."""
    import torch

    def version() -> int:
        raise RuntimeError("cuDNN version incompatibility: compiled against (9, 19, 0)\n but found (9, 1, 0).")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.cudnn, "version", version)
    assert facts.main() == 0
    printed = json.loads(capsys.readouterr().out)
    wanted = "cuDNN version incompatibility: compiled against (9, 19, 0) but found (9, 1, 0)."
    assert printed["cudnn_error"] == wanted
    monkeypatch.setattr(examining, "torch_facts", lambda: printed)
    _, out, _ = cli("doctor", "--seconds", "0", "--json", "-")
    (found,) = [each for each in json.loads(out)["findings"] if each["id"] == "software.torch"]
    assert found["state"] == "costs" and wanted in found["found"] and "does not load" not in out
