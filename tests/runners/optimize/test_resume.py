"""An interrupted search goes on from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.settings import RunnerSettings
from tests.conftest import Canary


def stop_at(world: Any, label: str) -> None:
    def stop(arm: Any, _name: str) -> None:
        if arm.label == label:
            raise KeyboardInterrupt

    world.on_replay = stop


def test_a_search_is_resumed(search: Any, world: Any) -> None:
    # GIVEN a search that was stopped in its third fix
    fixes = [world.fix("A", 0.5), world.fix("B", 1.0), world.fix("C", 0.7), world.fix("D", 0.9)]
    stop_at(world, "a.C")
    first = search(*fixes)
    assert first.interrupted and world.statuses(first) == {"a.A": "kept", "a.B": "no_gain"}
    # WHEN it is resumed
    world.on_replay = lambda *_: None
    world.replays.clear()
    outcome = search(*fixes, resume=True)
    # THEN what was decided stands, the rest is tried on top of it, and no record is overwritten
    assert world.statuses(outcome) == {"a.A": "kept", "a.B": "no_gain", "a.C": "kept", "a.D": "kept"}
    assert dict(outcome.settings.env) == {"A": "0.5", "C": "0.7", "D": "0.9"}
    names = [name for _, name, _ in world.replays]
    assert "baseline" not in names and not any(label in ("a.A", "a.B") for label, _, _ in world.replays)
    third = world.step(outcome, "C")
    assert third.comparison.ratio["mean"].value == pytest.approx(0.7, rel=0.02)
    assert outcome.final.ratio["mean"].value == pytest.approx(0.315, rel=0.02)
    assert outcome.accuracy == first.accuracy
    assert all(int(name[:3]) >= 5 for name in world.windows)


def test_kept_fixes_keep_their_figures(search: Any, world: Any) -> None:
    stop_at(world, "a.B")
    first = search(world.fix("A", 0.5), world.fix("B", 0.9))
    world.on_replay = lambda *_: None
    again = search(world.fix("A", 0.5), world.fix("B", 0.9), resume=True)
    before, after = world.step(first, "A"), world.step(again, "A")
    assert after.comparison.ratio["p99"] == before.comparison.ratio["p99"]
    assert (after.reason, after.verified, after.accuracy) == (before.reason, before.verified, before.accuracy)


def test_skipped_fixes_are_tried_again(search: Any, world: Any) -> None:
    search(world.fix("A", 0.5), budget_s=10.0)
    outcome = search(world.fix("A", 0.5), resume=True)
    assert world.statuses(outcome) == {"a.A": "kept"}


def test_other_input_is_refused(search: Any, world: Any) -> None:
    search(world.fix("A", 0.5))
    others: dict[str, dict[str, Any]] = {
        "max_batch_size": {"settings": RunnerSettings(max_batch_size=4)},
        "--seed 0": {"seed": 3},
        "other traffic": {"traffic": world.traffic(30.0)},
    }
    for words, more in others.items():
        with pytest.raises(InputError, match=words):
            search(world.fix("A", 0.5), resume=True, **more)


UNREADABLE = ("", "{", "[]", "{}", '{"schema": "latfix.search/1"}', "[" * 100_000, None)


@pytest.mark.parametrize("content", UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_folder_without_a_readable_journal_is_one_line(
    search: Any, world: Any, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "search.json").write_text(content)
    with pytest.raises(InputError, match=r"search\.json: found"):
        search(world.fix("A", 0.5), resume=True)


KEPT = ("trials", 0)
CHOICE = (*KEPT, "choices", 0)


EDITS: tuple[tuple[tuple[Any, ...], object, str], ...] = (
    ((*CHOICE, "fix"), "gone.fix", "found fix 'gone.fix', which this version of latfix does not know"),
    ((*CHOICE, "fix"), ["a.A"], "fix = "),
    ((*KEPT, "status"), "keep", "status 'keep'"),
    ((*CHOICE, "settings"), {"worker": 2}, "unknown key 'worker'"),
    ((*CHOICE, "settings"), {"workers": "two"}, "workers = 'two'"),
    ((*CHOICE, "settings"), {"batch_window_ms": [1]}, "batch_window_ms = "),
    ((*CHOICE, "settings"), [], "settings = "),
    ((*CHOICE, "settings"), {"env": {"LD_PRELOAD": "/tmp/x.so"}}, "LD_PRELOAD = '/tmp/x.so'"),
    ((*KEPT, "score"), "nan", "score = "),
    ((*KEPT, "prediction"), [], "prediction = "),
    ((*KEPT, "pairs"), [["none", "none"]], "none"),
    (("trials",), 7, "trials = 7"),
    (("ways",), [{"choices": [], "status": "ready", "reason": "", "cost": 3}], "cost = 3"),
    (("accuracy",), float("nan"), "NaN is no number"),
    (("accuracy",), 10**400, "a number of 401 digits"),
    (("load_s",), float("inf"), "Infinity is no number"),
    (("load_s",), 1e300, "an impossible time or count"),
    (("accuracy_s",), -1, "an impossible time or count"),
    (("replays",), 1.5, "replays = 1.5"),
    (("seed",), True, "seed = True"),
    (("found",), 3, "found = 3"),
)


def test_a_journal_of_another_version_or_an_edited_one_is_one_line(search: Any, world: Any, tmp_path: Path) -> None:
    """Whatever is not seen here ends the search much later, within the search or when it is written again."""
    search(world.fix("A", 0.5))
    file = tmp_path / "out" / "search.json"
    text = file.read_text()
    for where, value, said in EDITS:
        document = inner = json.loads(text)
        for key in where[:-1]:
            inner = inner[key]
        assert where[-1] in inner, "an entry that a journal has"
        inner[where[-1]] = value
        file.write_text(json.dumps(document))
        with pytest.raises(InputError) as caught:
            search(world.fix("A", 0.5), resume=True)
        message = caught.value.message
        assert said in message and "\n" not in message and str(tmp_path / "out") in message, (where, value)
    assert "this search cannot be resumed: start a new one without --resume" in message


def test_the_journal_is_written_after_every_trial(search: Any, world: Any, tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def look(_arm: Any, name: str) -> None:
        if name[0].isdigit():
            document = json.loads((tmp_path / "out" / "search.json").read_text())
            seen.append([choice["fix"] for trial in document["trials"] for choice in trial["choices"]])

    world.on_replay = look
    search(world.fix("A", 0.5), world.fix("B", 1.0))
    assert seen[0] == [] and ["a.A"] in seen


def test_answers_that_a_pickle_holds_are_refused_before_anything_runs(
    search: Any, world: Any, tmp_path: Path, canary: Canary
) -> None:
    """As versions up to now wrote them; a folder may come from a stranger."""
    search(world.fix("A", 0.5))
    world.replays.clear()
    pickled = np.frombuffer(canary.pickle, dtype=np.uint8)
    np.savez(tmp_path / "out" / "outputs.npz", scored=pickled, told=np.array("{}"))
    with pytest.raises(InputError, match=r"outputs\.npz: found .* pickles.*; expected .*; start again") as caught:
        search(world.fix("A", 0.5), resume=True)
    assert "\n" not in caught.value.message and not canary.sang and not world.replays
