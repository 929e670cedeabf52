"""``workload.toml`` and plans as text: valid TOML that latfix cannot use is reported in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from latfix.config.plan import read_plan
from latfix.config.workload_toml import load_spec
from latfix.errors import InputError
from latfix.files.toml_reader import read_toml

HEAD = '[workload]\nentry = "a:A"\ntraffic = "t.jsonl"\n'
PLAN = 'schema = "latfix.plan/1"\nworkload = "x"\n'
FIX = '[[fix]]\nid = "gc.freeze"\n[fix.settings]\n'
HUGE = "1" + "0" * 400  # no float holds it
DECIMAL = "1" * 5000  # Python reads no such number
HEX = "0x" + "f" * 5000  # and it writes no such number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.py").touch()
    (tmp_path / "t.jsonl").write_text('{"arrival_s": 0}\n')
    return tmp_path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_plan(path) if path.name == "plan.toml" else load_spec(str(path))
    message = caught.value.message
    assert "\n" not in message and len(message) < len(str(path)) + 200
    return message


@pytest.mark.parametrize(
    ("name", "text", "line", "key"),
    [
        ("workload.toml", f"{HEAD}[runner]\nbatch_window_ms = {HUGE}\n", 5, "batch_window_ms"),
        ("workload.toml", f"{HEAD}[objective]\nslo_ms = -{HUGE}\n", 5, "slo_ms"),
        ("workload.toml", f"{HEAD}[profile.fast.traffic]\nspeed = {HUGE}\n", 5, "speed"),
        ("workload.toml", f"{HEAD}[runner]\nseed = 9223372036854775808\n", 5, "seed"),
        ("workload.toml", f"{HEAD}[runner]\nseed = {HEX}\n", 5, "seed"),
        ("workload.toml", f"{HEAD}runner = {{ seed = {HEX} }}\n", 4, "seed"),
        ("workload.toml", f"[workload]\nname = {HEX}\n", 2, "name"),
        ("workload.toml", f"workload = [{HEX}]\n", 1, "workload"),
        ("plan.toml", f"schema = {HEX}\n", 1, "schema"),
        ("plan.toml", f"{PLAN}[measured]\np99_before_ms = {HUGE}\n", 4, "p99_before_ms"),
        ("plan.toml", f"{PLAN}[machine]\ncores = {HEX}\n", 4, "cores"),
        ("plan.toml", f"{PLAN}fix = {HEX}\n", 3, "fix"),
        ("plan.toml", f"{PLAN}{FIX}workers = 2\n{FIX}seed = 3\nbatch_window_ms = {HUGE}\n", 11, "batch_window_ms"),
        ("plan.toml", f"{PLAN}{FIX}seed = 1\n{FIX}seed = {HUGE}\n", 10, "seed"),
    ],
)
def test_whole_numbers_are_within_64_bits(folder: Path, name: str, text: str, line: int, key: str) -> None:
    """A larger one would raise an OverflowError as a float, or a ValueError as text."""
    (folder / name).write_text(text)
    message = refusal(folder / name)
    assert message.startswith(f"{folder / name}:{line}: found {key} = ") and "within 64 bits" in message


def test_a_number_that_python_does_not_read_has_its_line(folder: Path) -> None:
    (folder / "workload.toml").write_text(f"{HEAD}[runner]\nworkers = 1\nseed = {DECIMAL}\n")
    assert refusal(folder / "workload.toml").startswith(f"{folder / 'workload.toml'}:6: found a number of thousands")


def test_the_largest_numbers_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(f"most = {2**63 - 1}\nleast = {-(2**63)}\n")
    assert read_toml(tmp_path / "x.toml")[0] == {"most": 2**63 - 1, "least": -(2**63)}


def test_dotted_keys_nest_no_deeper_than_can_be_shown(folder: Path) -> None:
    """Tables from dotted keys are parsed without recursion, but showing them raises a RecursionError."""
    (folder / "workload.toml").write_text(f"{HEAD}name{'.a' * 3000} = 1\n")
    assert "nested too deeply" in refusal(folder / "workload.toml")


def test_a_byte_order_mark_is_ignored(folder: Path) -> None:
    (folder / "workload.toml").write_text(HEAD, encoding="utf-8-sig")
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8-sig")
    assert load_spec(str(folder)).entry == "a:A"
    assert read_plan(folder / "plan.toml").workload == "x"


@pytest.mark.parametrize("name", ["workload.toml", "plan.toml"])
def test_a_device_is_not_read(folder: Path, name: str) -> None:
    """/dev/null would look like an empty file; other devices never end."""
    (folder / name).symlink_to("/dev/null")
    assert "found no regular file" in refusal(folder / name)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_lines_are_those_of_editors(folder: Path, mark: str) -> None:
    """Python's splitlines() also breaks at characters that TOML allows in comments and texts."""
    (folder / "workload.toml").write_text(f"# a{mark}b\n{HEAD}[runner]\nworkers = 0\n", encoding="utf-8")
    (folder / "plan.toml").write_text(
        f"{PLAN}[[fix]]\nid = 'gc.freeze'\nreason = 'a{mark}b'\n[fix.settings]\nworkers = 0\n", encoding="utf-8"
    )
    assert refusal(folder / "workload.toml").startswith(f"{folder / 'workload.toml'}:6: found workers = 0")
    assert refusal(folder / "plan.toml").startswith(f"{folder / 'plan.toml'}:7: found workers = 0")


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        ('[traffic.map]\narrival_s = "1"\n', 5, "map arrival_s: found a field of the request"),
        ('[traffic.map]\na = "1"\n"two words" = "1"\n', 6, "map: found feature name 'two words'"),
        ('[traffic]\nmap = { lambda = "1" }\n', 5, "map: found feature name 'lambda'"),
        ('[traffic.map]\ntokens = "import os"\n', 5, "map tokens: found 'import os'"),
    ],
)
def test_a_wrong_name_in_the_map_has_its_line(folder: Path, lines: str, line: int, says: str) -> None:
    (folder / "workload.toml").write_text(HEAD + lines)
    assert refusal(folder / "workload.toml").startswith(f"{folder / 'workload.toml'}:{line}: {says}")


def test_a_wrong_name_in_the_map_of_a_profile_has_its_line(folder: Path) -> None:
    """The profile's map is read instead of the one that it replaces."""
    (folder / "workload.toml").write_text(
        HEAD + '[traffic.map]\na = "1"\n[profile.fast.traffic.map]\nb = "1"\narrival_s = "1"\n'
    )
    assert load_spec(str(folder)).traffic_map == {"a": "1"}
    with pytest.raises(InputError, match=r"workload\.toml:8: map arrival_s: found a field"):
        load_spec(str(folder), profile="fast")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"{HEAD}[runner]\nmax_batchsize = 2\n",
            ":5: found unknown key 'max_batchsize' in [runner]; expected a known one",
        ),
        (
            f"{HEAD}[runner]\nworkers = 2\nworkers = 3\n",
            ":6: found 'workers = 3', which is not TOML (the key is there",
        ),
        (f"{HEAD}[runner]\nprecision = bf16\n", ":5: found 'precision = bf16', which is not TOML"),
        (HEAD.replace('"a:A"', '"a.py:A"'), "leave out .py"),
        (f"{HEAD}[objective]\npercentile = 0.99\n", ":5: found percentile = 0.99; expected a percentile from 1 to"),
    ],
)
def test_a_mistake_is_shown_as_written(folder: Path, text: str, words: str) -> None:
    (folder / "workload.toml").write_text(text)
    assert words in refusal(folder)


@pytest.mark.parametrize(
    ("data", "line"), [('\nname = "gr\xfc\xdfe"\n'.encode("latin-1"), 2), (HEAD.encode("utf-16"), 1)]
)
def test_text_in_another_encoding_has_its_line(folder: Path, data: bytes, line: int) -> None:
    (folder / "workload.toml").write_bytes(data)
    assert f"workload.toml:{line}: found byte 0x" in refusal(folder)
