"""The plain service answers, depends on the text alone, and can be made slower."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("fastapi")

FILE = Path(__file__).resolve().parents[2] / "examples" / "plain_service.py"


def service() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_service", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_service_rates_a_text() -> None:
    plain = service()
    assert [route.path for route in plain.app.routes if "POST" in getattr(route, "methods", ())] == ["/rate"]
    answers = [plain.rate(plain.Text(text=text)) for text in ("A fine, fine day", "A fine, fine day", "")]
    assert answers[0] == answers[1] and answers[0]["words"] == 4
    assert answers[0]["frequent"][0] == ("fine", 2) and 0 < answers[0]["score"] < 1
    assert "latfix" not in FILE.read_text().replace("without latfix", "").replace("docs/gates.md", "")


def test_a_longer_computation_has_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = {}
    for longer in ("1", "1.1", "1.3"):
        monkeypatch.setenv("LONGER", longer)
        layers[longer] = len(service().model.mix)
    assert layers == {"1": 20, "1.1": 22, "1.3": 26}
