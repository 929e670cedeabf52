"""A run's folder belongs to one command: two that start at once never write into the same one."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn
from unittest import mock

import numpy as np
import pytest

from latfix.config.workload_toml import load_spec
from latfix.errors import EXIT_RUNNER, InputError, LatfixError, RunnerError
from latfix.run_record.run_record import RunRecord
from latfix.runners.replay import folder_lock as claims
from latfix.runners.replay.run_session import (
    Replay,
    default_folder,
    new_folder,
    open_folder,
    prepare_folder,
    reopen_folder,
    replay_into,
    run,
    writing_into,
)
from latfix.runners.replay.runner_process import RunnerProcess
from latfix.traffic.io import stored_schedule
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload

AT_ONCE = 8


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    yield
    claims.release_all()


def _at_once(what: object, *arguments: object) -> list[object]:
    """Results of simultaneous calls; a refusal is returned as its message."""
    start = threading.Barrier(AT_ONCE)

    def call() -> object:
        start.wait()
        try:
            return what(*arguments)  # type: ignore[operator]
        except InputError as error:
            return error.message

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [found.result() for found in [pool.submit(call) for _ in range(AT_ONCE)]]


@pytest.mark.parametrize("there", [True, False], ids=["empty", "new"])
def test_only_one_process_gets_a_folder(tmp_path: Path, there: bool) -> None:
    for k in range(20):
        folder = tmp_path / str(k)
        if there:
            folder.mkdir()
        answers = _at_once(open_folder, folder)
        assert answers.count(folder) == 1
        refused = f"{folder}: found a folder that is not empty; name another with --out, nothing is overwritten"
        assert answers.count(refused) == AT_ONCE - 1


def test_a_folder_filled_since_the_check_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN another process that has written and ended between the check and the claim
    (tmp_path / "run.json").write_text("{}")
    looks = iter([[], [tmp_path / "run.json", tmp_path / claims.CLAIM]])
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(next(looks)))

    with pytest.raises(InputError, match="not empty"):
        open_folder(tmp_path)

    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_nothing_of_a_claim_is_left_when_the_command_ends(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "run")
    assert any(folder.iterdir())
    claims.release_all()
    assert not any(folder.iterdir())
    assert open_folder(folder) == folder
    (tmp_path / claims.CLAIM).write_bytes(b"")  # of another process
    assert not claims.claim(tmp_path)
    claims.release_all()
    assert (tmp_path / claims.CLAIM).exists()


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = _at_once(default_folder, "w", "diagnose")
    assert len(set(found)) == AT_ONCE
    assert all(isinstance(folder, Path) and folder.is_dir() for folder in found)


@pytest.mark.parametrize("there", ["a file", "a link to a disk that is gone"])
def test_a_default_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if there == "a file":
        (tmp_path / "latfix-runs").touch()
    else:
        (tmp_path / "latfix-runs").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"latfix-runs.*cannot write there"):
        default_folder("w", "diagnose")


def test_no_run_joins_the_segments_of_another(tmp_path: Path) -> None:
    spec = load_spec(str(write_workload(tmp_path / "w")))
    replay = Replay(spec=spec, traffic=Traffic.plain(np.arange(3, dtype=np.int64)), settings=spec.settings)
    folder = tmp_path / "run"
    prepare_folder(folder, replay)
    (folder / "segments" / "samples.jsonl").write_text('[1, "a", 2.0]\n')

    with pytest.raises(InputError, match="not empty"):
        prepare_folder(folder, replay)

    assert RunRecord.load(folder).samples["value"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (InputError("max_batch_size = 8; lower it"), {"runner.log"}),
        (RunnerError("the model ran out of memory"), {"runner.log", "run.json", "traffic.parquet"}),
    ],
    ids=["of the input", "of the model"],
)
def test_a_corrected_command_may_use_the_folder_of_one_that_began_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: LatfixError, left: set[str]
) -> None:
    def start(process: RunnerProcess) -> NoReturn:
        process._log.touch()
        raise error

    monkeypatch.setattr(RunnerProcess, "start", start)
    spec = load_spec(str(write_workload(tmp_path / "w")))
    folder = open_folder(tmp_path / "run")
    with pytest.raises(type(error)):
        run(folder, Replay(spec=spec, traffic=Traffic.plain(np.arange(3)), settings=spec.settings))
    claims.release_all()
    assert left <= {file.name for file in folder.iterdir()}
    if isinstance(error, InputError):
        assert open_folder(folder) == folder
    else:
        with pytest.raises(InputError, match="not empty"):
            open_folder(folder)


def test_a_number_with_which_no_record_can_be_read_is_refused_before_the_replay(tmp_path: Path) -> None:
    spec = load_spec(str(write_workload(tmp_path / "w")))
    traffic = Traffic.plain(np.arange(3, dtype=np.int64), metadata={"transforms": [{"speed": 1e300}]})
    with pytest.raises(InputError, match=r"traffic\.transforms\.speed = 1e\+300; expected a number of at most 2\^63"):
        prepare_folder(tmp_path / "run", Replay(spec=spec, traffic=traffic, settings=spec.settings))
    assert not (tmp_path / "run").exists()


def test_a_disk_that_is_full_before_a_replay_is_no_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load_spec(str(write_workload(tmp_path / "w")))
    replay = Replay(spec=spec, traffic=Traffic.plain(np.arange(3, dtype=np.int64)), settings=spec.settings)
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(stored_schedule, "write_bytes", mock.Mock(side_effect=full))
    with pytest.raises(LatfixError, match=r"could not be written \(No space left .* free space") as raised:
        prepare_folder(tmp_path / "run", replay)
    assert raised.value.exit_code == EXIT_RUNNER


def test_a_disk_that_is_full_after_the_replay_is_one_line(tmp_path: Path) -> None:
    spec = load_spec(str(write_workload(tmp_path / "w")))
    replay = Replay(spec=spec, traffic=Traffic.plain(np.arange(3, dtype=np.int64)), settings=spec.settings)
    folder = prepare_folder(tmp_path / "run", replay)
    (folder.path / "segments" / "samples.jsonl").symlink_to("/dev/full")
    process = mock.Mock(pid=1, ready={"machine": {}, "load_s": 0.1, "device": "cpu"})
    process.replay.return_value = {"state": "complete", "t0_ns": 1}
    with pytest.raises(LatfixError, match=r"could not be written \(No space left .* recorded is kept; free space"):
        replay_into(process, folder)


def test_a_disk_that_is_full_when_results_are_written_is_no_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(LatfixError, match=r"written \(File too .* kept; free") as raised, writing_into(tmp_path):
        raise OSError(errno.EFBIG, "File too large")
    assert raised.value.exit_code == EXIT_RUNNER


def test_a_window_of_a_killed_search_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "000-base").mkdir()
    (tmp_path / "000-base-2").mkdir()
    assert new_folder(tmp_path / "000-base") == tmp_path / "000-base-3"
    assert new_folder(tmp_path / "001-base") == tmp_path / "001-base"


HOLDER = """
import sys, time
from pathlib import Path
from latfix.runners.replay.folder_lock import claim
assert claim(Path(sys.argv[1]))
print("claimed", flush=True)
time.sleep(600)
"""


def test_one_command_at_a_time_goes_on_in_a_folder(tmp_path: Path) -> None:
    # GIVEN a command that works in a folder
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "claimed\n"
        # WHEN others try to continue there THEN none may until it is killed, and then exactly one
        refused = f"{tmp_path}: found another latfix at work in it; wait until it ends, or end it first"
        assert _at_once(reopen_folder, tmp_path) == [refused] * AT_ONCE
        holder.kill()
    assert (tmp_path / claims.CLAIM).exists()
    answers = _at_once(reopen_folder, tmp_path)
    assert answers.count(tmp_path) == 1 and answers.count(refused) == AT_ONCE - 1
    claims.release_all()
    assert not any(tmp_path.iterdir())
    assert reopen_folder(tmp_path) == tmp_path


@pytest.mark.parametrize("opened", [open_folder, reopen_folder])
def test_a_folder_on_a_read_only_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], Path]
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"cannot write there \(Read-only file system\)") as caught:
        opened(tmp_path)
    assert "\n" not in caught.value.message
