"""Malformed workloads, traffic, plans, options and gates: one clear line, exit code 2, nothing replayed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.conftest import Reached, refused
from tests.conftest import cli, write_workload


@dataclass(frozen=True)
class Bench:
    """A sound workload in a folder of its own."""

    base: Path
    workload: Path

    def refuse(self, *arguments: object, message: str = "") -> str:
        """Call it; it must be refused in one line with nothing replayed. Returns the line."""
        err = refused(cli(*arguments), message)
        assert len(err) < 2000
        assert not list(self.base.glob("**/requests.parquet")) and not list(self.base.glob("**/segments"))
        return err

    def diagnose(self, *arguments: object, message: str = "") -> str:
        return self.refuse("diagnose", self.workload, *arguments, message=message)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_runner: None) -> Bench:
    del no_runner
    monkeypatch.chdir(tmp_path)
    return Bench(tmp_path, write_workload(tmp_path / "w"))


def test_a_sound_workload_is_not_refused(bench: Bench) -> None:
    with pytest.raises(Reached):
        cli("diagnose", bench.workload)


HEAD = '[workload]\nentry = "adapter:Plain"\ntraffic = "traffic.jsonl"\n'
RUNNER = HEAD + "[runner]\n"

#: One of each kind; ``tests/config/test_settings_tables.py`` has them all.
SETTINGS = [
    ("max_batch_size = 0", "max_batch_size"),
    ("max_batch_size = 99999999999", "max_batch_size"),
    ("max_batch_sise = 8", "did you mean 'max_batch_size'"),
    ('batch_window_ms = "5 ms"', "batch_window_ms"),
    ('device = "cuda:x"', "device"),
    ('env = { "A=B" = "c" }', "env"),
]


@pytest.mark.parametrize(("line", "named"), SETTINGS)
def test_settings(bench: Bench, line: str, named: str) -> None:
    (bench.workload / "workload.toml").write_text(RUNNER + line + "\n")
    assert "workload.toml:5: " in bench.diagnose(message=named)


#: ``tests/config/test_settings_tables.py`` has all objectives, ``tests/files/test_toml_reader.py`` what is no TOML.
DOCUMENTS = [
    ("", "no [workload] table"),
    ("\n\n# nothing\n", "no [workload] table"),
    ("workload = 3", "workload = 3"),
    ('[workload]\ntraffic = "traffic.jsonl"', "no entry"),
    ('[workload]\nentry = "adapter:Plain"', "no traffic"),
    ('[workload]\nentry = 3\ntraffic = "traffic.jsonl"', "entry = 3"),
    ('[workload]\nentry = "adapter"\ntraffic = "traffic.jsonl"', '"file:Class"'),
    ('[workload]\nentry = "adapter:"\ntraffic = "traffic.jsonl"', '"file:Class"'),
    ('[workload]\nentry = "../adapter:Plain"\ntraffic = "traffic.jsonl"', '"file:Class"'),
    ('[workload]\nentry = "nothing:Plain"\ntraffic = "traffic.jsonl"', "no file nothing.py"),
    ('[workload]\nmodel = "model.pt2"\ntraffic = "traffic.jsonl"', "model"),
    ('[workload]\nentry = "adapter:Plain"\ntraffic = "nothing.jsonl"', "no such file"),
    ('[workload]\nentry = "adapter:Plain"\ntraffic = ""', "traffic"),
    ('[workload]\nentry = "adapter:Plain"\ntraffic = ["traffic.jsonl"]', "traffic"),
    ('[workload]\nentry = "adapter:Plain"\ntraffic = "a\\u0000b"', "traffic"),
    (f'[workload]\nentry = "adapter:Plain"\ntraffic = "{"a" * 5000}"', "no such file"),
    ('[workload]\nentry = "adapter:Plain"\ntraffic = "."', ""),
    (HEAD.replace("[workload]", '[workload]\nname = "two\\nlines"'), "name"),
    (HEAD.replace("[workload]", "[workload]\nname = 3"), "name"),
    (HEAD.replace("[workload]", '[workload]\nname = ""'), "name"),
    (HEAD + "colour = 1", "unknown key 'colour'"),
    (HEAD + "[server]\nport = 1", "unknown key 'server'"),
    (HEAD + "[[runner]]\nseed = 1", "runner"),
    (HEAD + "[objective]\npercentile = 100", "percentile"),
    (HEAD + "[objective]\nmax_acuracy_drop = 0.1", "did you mean"),
    (HEAD + "[traffic]\nfile = 3", "unknown key 'file'"),
    (HEAD + "[traffic]\nmap = 3", "map = 3"),
    (HEAD + "[traffic.map]\ntokens = 3", "tokens = 3"),
    (HEAD + '[traffic.map]\ntokens = "__import__(1)"', "tokens"),
    (HEAD + '[traffic.map]\ntokens = "value ** 2"', "tokens"),
    (HEAD + '[traffic.map]\ntokens = "no_such_feature + 1"', "no_such_feature"),
    (HEAD + f'[traffic.map]\ntokens = "{"(" * 3000}1{")" * 3000}"', "tokens"),
    (HEAD + "[runner\nseed = 1", "not TOML"),
    (HEAD + HEAD, "not TOML"),
    (HEAD + 'name = "unclosed', "not TOML"),
    (HEAD + "x = " + "[" * 3000 + "]" * 3000, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "named"), DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_workload_files(bench: Bench, text: str, named: str) -> None:
    (bench.workload / "workload.toml").write_text(text)
    bench.diagnose(message=named)


@pytest.mark.parametrize("data", [b"\xff\xfe[workload]", HEAD.encode() + b'name = "\xc3("\n', b"\x00" * 64])
def test_workload_files_that_are_no_text(bench: Bench, data: bytes) -> None:
    (bench.workload / "workload.toml").write_bytes(data)
    bench.diagnose(message="workload.toml")


def test_a_folder_instead_of_the_file(bench: Bench) -> None:
    (bench.workload / "workload.toml").unlink()
    bench.diagnose(message="without workload.toml")
    (bench.workload / "workload.toml").mkdir()
    bench.diagnose(message="workload.toml: found a file that cannot be read (Is a directory); expected a TOML file")


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("no/such/folder", "no such folder or sample"),
        ("recomender", "did you mean 'recommender'"),
        ("", "found an empty text"),
        ("a" * 5000, "no such folder"),
        ("w/adapter.py", "found an unknown format"),
        ("model.pt2", "no such file"),
        ("/dev/null", "/dev/null"),
        ("bad\nname\x1b[31m", "bad name"),
    ],
    ids=range(8),
)
def test_workloads_that_are_none(bench: Bench, argument: str, named: str) -> None:
    bench.refuse("diagnose", argument, message=named)


#: ``tests/traffic/io/test_malformed.py`` has them all.
TRAFFIC = ["", "not json\n", '{"arrival_s": -1}\n', "PAR1 but not really"]


@pytest.mark.parametrize("text", TRAFFIC, ids=range(len(TRAFFIC)))
def test_traffic(bench: Bench, text: str) -> None:
    (bench.workload / "traffic.jsonl").write_text(text)
    bench.diagnose(message="traffic")


OPTIONS: list[tuple[tuple[object, ...], str]] = [
    (("--speed", "0"), "--speed"),
    (("--speed", "-1"), "--speed"),
    (("--speed", "nan"), "--speed"),
    (("--speed", "inf"), "--speed"),
    (("--speed", "fast"), "--speed"),
    (("--speed", "1e-300"), ""),
    (("--speed", "9.3e18"), "speed: found 9.3e+18"),
    (("--duration", "0"), "--duration"),
    (("--duration", "-3"), "--duration"),
    (("--duration", "nan"), "--duration"),
    (("--duration", "5m"), "--duration"),
    (("--limit", "0"), "--limit"),
    (("--limit", "-2"), "--limit"),
    (("--limit", "1.5"), "--limit"),
    (("--repeat", "0"), "--repeat"),
    (("--repeat", "100001"), "--repeat"),
    (("--seed", "-1"), "--seed"),
    (("--seed", str(2**63)), "--seed"),
    (("--seed", "x"), "--seed"),
    (("--percentile", "0"), "--percentile"),
    (("--percentile", "0.99"), "expected a percentile from 1 to below 100"),
    (("--percentile", "100"), "--percentile"),
    (("--percentile", "nan"), "--percentile"),
    (("--device", "gpu"), "--device"),
    (("--device", "cuda:"), "--device"),
    (("--map", "x"), "--map"),
    (("--map", "=1"), "--map"),
    (("--map", "x=y"), "y"),
    (("--map", "x=1/0"), ""),
    (("--traffic", "nothing.jsonl"), "nothing.jsonl"),
    (("--traffic", "a" * 5000), "no such file"),
    (("--out", "w"), "not empty"),
    (("--out", "w/adapter.py"), "found a file"),
    (("--out", "/proc/nothing/here"), "/proc"),
    (("--out", "w/adapter.py/below"), "adapter.py"),
    (("--out", "a" * 5000), "File name too long"),
    (("--json", "no/such/folder/d.json"), "--json"),
    (("--json", "w"), "--json"),
    (("--json", "a" * 5000), "--json"),
    (("--baseline", "nothing"), "no such folder"),
    (("--header", "Authorization: secret"), "--header: found /"),
    (("--speeed", "2"), "--speeed"),
    (("--speed",), "--speed"),
    (("--json",), "--json"),
    (("extra",), "extra"),
]


@pytest.mark.parametrize(("options", "named"), OPTIONS, ids=lambda value: "" if isinstance(value, str) else None)
def test_options(bench: Bench, options: tuple[object, ...], named: str) -> None:
    bench.diagnose(*options, message=named)


#: ``tests/gates/test_syntax.py`` has what does not parse; the last two ask for what there is not.
GATES = ["", "p99<200", "p99<-5ms", "p99<__import__('os')", "p99<=baseline*1.05", "accuracy>=0.9"]


@pytest.mark.parametrize("gate", GATES)
def test_gates(bench: Bench, gate: str) -> None:
    bench.diagnose("--gate", gate)


PLAN = 'schema = "latfix.plan/1"\nworkload = "w"\n'
#: ``tests/config/test_plan.py`` has them all.
PLANS = [
    *("", "not toml", PLAN + "[[fix]]\nid = 'gc.frieze'\n"),
    PLAN + "[[fix]]\nid = 'gc.freeze'\n[fix.settings]\nworkers = -1\n",
]


@pytest.mark.parametrize("text", PLANS, ids=range(len(PLANS)))
def test_plans(bench: Bench, text: str) -> None:
    (bench.base / "plan.toml").write_text(text)
    bench.diagnose("--plan", "plan.toml", message="plan.toml")
    for nowhere in ("nothing.toml", "w", "a" * 5000):
        bench.diagnose("--plan", nowhere)


OPTIMIZE: list[tuple[tuple[object, ...], str]] = [
    (("--budget", "0"), "--budget"),
    (("--budget", "soon"), "--budget"),
    (("--budget", "-5m"), "--budget"),
    (("--budget", "9999h"), "--budget"),
    (("--budget", "1e9"), "--budget"),
    (("--fix", "gc.frieze"), "did you mean 'gc.freeze'"),
    (("--no-fix", "nothing"), "--no-fix"),
    (("--speed", "nan"), "--speed"),
    (("--gate", "p99<"), "gate"),
    (("--plan", "nothing.toml"), "nothing.toml"),
    (("--seed", "-1"), "--seed"),
    (("--out", "w"), "not empty"),
    (("--json", "no/such/folder/d.json"), "--json"),
]


@pytest.mark.parametrize(("options", "named"), OPTIMIZE, ids=lambda value: "" if isinstance(value, str) else None)
def test_options_of_optimize(bench: Bench, options: tuple[object, ...], named: str) -> None:
    bench.refuse("optimize", bench.workload, *options, message=named)


@pytest.mark.parametrize("arguments", [(), ("diagnos",), ("diagnose",), ("optimize",), ("--nothing",), ("-x",)])
def test_usage(bench: Bench, arguments: tuple[str, ...]) -> None:
    if not arguments:
        code, out, err = cli()
        assert code == 2 and "Usage" in out and err == ""
        return
    bench.refuse(*arguments)


def _accepted_or_refused(bench: Bench, *arguments: object) -> None:
    """Any input at all: either every check passes, or it is refused as malformed input must be."""
    try:
        bench.diagnose(*arguments)
    except Reached:
        shutil.rmtree(bench.base / "latfix-runs", ignore_errors=True)


_SOUND = RUNNER + 'max_batch_size = 8\nbatch_window_ms = 5.0\ndevice = "cpu"\n[objective]\npercentile = 99\n'
_ANY = settings(
    max_examples=60,
    deadline=None,
)


@_ANY
@given(data=st.data())
def test_any_damage_to_the_workload_file(bench: Bench, data: st.DataObject) -> None:
    source = _SOUND.encode()
    start = data.draw(st.integers(0, len(source)))
    end = data.draw(st.integers(start, min(len(source), start + 20)))
    put = data.draw(st.one_of(st.binary(max_size=8), st.text(max_size=8).map(str.encode)))
    (bench.workload / "workload.toml").write_bytes(source[:start] + put + source[end:])
    _accepted_or_refused(bench)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
_KEYS = st.sampled_from(["arrival_s", "id", "priority", "session", "deadline_ms", "payload", "value", "status", ""])


@_ANY
@given(rows=st.lists(st.dictionaries(_KEYS, _VALUES, max_size=5), min_size=1, max_size=4), cut=st.integers(0, 12))
def test_any_json_as_traffic(bench: Bench, rows: list[dict[str, object]], cut: int) -> None:
    text = "".join(json.dumps({"arrival_s": 0.5, **row}) + "\n" for row in rows)
    (bench.workload / "traffic.jsonl").write_bytes(text.encode()[: len(text) - cut])
    _accepted_or_refused(bench)


@_ANY
@given(data=st.binary(max_size=80))
def test_any_bytes_as_traffic(bench: Bench, data: bytes) -> None:
    (bench.workload / "traffic.jsonl").write_bytes(data)
    _accepted_or_refused(bench)


@_ANY
@given(
    option=st.sampled_from(
        ["--speed", "--duration", "--limit", "--repeat", "--seed", "--percentile", "--gate", "--map"]
    ),
    value=st.one_of(st.floats().map(str), st.integers().map(str), st.text(max_size=8)),
)
def test_any_value_of_an_option(bench: Bench, option: str, value: str) -> None:
    if option == "--repeat" and value.lstrip("+").strip().isdigit():
        value = str(int(value) % 50)  # a large one is valid, and slow
    _accepted_or_refused(bench, f"{option}={value}")
