"""Plans: read back as written, and refused with a line if wrong."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.config.plan import MEASURED_KEYS, Plan, PlannedFix, plan_text, read_plan, write_plan
from latfix.errors import InputError
from latfix.settings import DEVICE, ENVIRONMENT, FEATURE, FLAG, MODULES, Rule, RunnerSettings, rules_of

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
PLAN = Plan(
    workload="ranker",
    fixes=(
        PlannedFix(
            id="quantize.int8_dynamic",
            settings={"precision": "int8_dynamic"},
            reason="p99 x0.31 [0.28, 0.36]",
            verified="38 of 38 linear layers are quantized",
        ),
        PlannedFix(id="gc.freeze", settings={"gc": "freeze"}),
        PlannedFix(
            id="host.threads", settings={"intra_op_threads": 1, "env": {"OMP_WAIT_POLICY": "PASSIVE", "A": "1"}}
        ),
        PlannedFix(id="memory.pool", settings={"buffer_pool": True, "env": {"A": "2"}}, reason='says "so"\nand more'),
    ),
    machine={"cpu": "some core", "cores": 2},
    measured={"p99_before_ms": 812.0, "p99_after_ms": 190.5, "accuracy_before": 0.91, "accuracy_after": 0.908},
    created="2026-01-02T03:04:05+00:00",
    latfix="0.1.0",
)


NAMES = st.text(st.characters(codec="utf-8"), max_size=12).filter(str.isprintable)
#: Strategies for settings that are neither numbers nor choices.
OTHER_VALUES: dict[Rule, st.SearchStrategy[object]] = {
    FLAG: st.booleans(),
    DEVICE: st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
    MODULES: st.lists(NAMES, max_size=4),
    FEATURE: NAMES,
    ENVIRONMENT: st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True),
        TEXT.filter(lambda text: "\0" not in text),
        max_size=3,
    ),
}


def _values(rule: Rule) -> st.SearchStrategy[object]:
    """Any value that a rule accepts."""
    if rule in OTHER_VALUES:
        return OTHER_VALUES[rule]
    if rule.choices:
        return st.sampled_from(rule.choices)
    whole = st.integers(int(rule.least), int(rule.most))
    return st.floats(rule.least, rule.most) | whole if rule.is_float else whole


VALUES = {name: _values(rule) for name, rule in rules_of(RunnerSettings).items()}
SETTINGS = st.fixed_dictionaries({}, optional=dict(VALUES)) | st.fixed_dictionaries(VALUES)
FIXES = st.lists(
    st.builds(
        PlannedFix,
        id=st.from_regex(r"[a-z]{1,8}\.[a-z0-9_]{1,8}", fullmatch=True),
        settings=SETTINGS,
        reason=TEXT,
        verified=TEXT,
    ),
    max_size=4,
    unique_by=lambda fix: fix.id,
)
PLANS = st.builds(
    Plan,
    workload=TEXT.filter(lambda text: bool(text.strip())),
    fixes=FIXES.map(tuple),
    machine=st.dictionaries(TEXT, TEXT | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(-1e9, 1e9)),
    measured=st.dictionaries(st.sampled_from(MEASURED_KEYS), st.floats(allow_nan=False, allow_infinity=False)),
    verdict=st.sampled_from(["improved", "no_gain", "inconclusive"]),
    rounds=st.integers(0, 15),
    created=TEXT,
    latfix=TEXT,
)


@settings(max_examples=100)
@given(PLANS)
def test_a_written_plan_is_read(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        write_plan(plan, path)
        read = read_plan(path)
        assert read == plan
        assert [entry.name for entry in Path(folder).iterdir()] == ["plan.toml"]
    started = RunnerSettings(env={"KEPT": "1"})
    assert started.with_overrides(read.settings()) == started.with_overrides(plan.settings())


@given(st.lists(st.fixed_dictionaries({}, optional=dict(VALUES)), min_size=2, max_size=4))
@settings(max_examples=60)
def test_of_two_fixes_the_later_wins(changes: list[dict[str, Any]]) -> None:
    plan = Plan(workload="w", fixes=tuple(PlannedFix(id=f"a.b{k}", settings=c) for k, c in enumerate(changes)))
    step_by_step = RunnerSettings()
    for change in changes:
        step_by_step = step_by_step.with_overrides(change)
    assert RunnerSettings().with_overrides(plan.settings()) == step_by_step
    assert plan.environment() == step_by_step.env


#: As version 0.1.0 wrote it, before plans knew lists and comments on what they set.
OLD = """\
# A plan for ranker: settings that latfix changed, measured and kept.
# latfix diagnose WORKLOAD --plan plan.toml replays it. Remove a [[fix]] to undo it.
schema = "latfix.plan/1"
workload = "ranker"
latfix = "0.1.0"
created = "2026-01-02T03:04:05+00:00"

# Where it was measured; elsewhere, measure again.
[machine]
cpu = "some core"
cores = 2

# Before and after, from the final interleaved replay.
[measured]
p99_before_ms = 812.0
p99_ratio = 0.25

[[fix]]
id = "quantize.int8_dynamic"
reason = "p99 x0.31 [0.28, 0.36]"
[fix.settings]
precision = "int8_dynamic"

[[fix]]
id = "memory.allocator"
[fix.settings]
env = { GLIBC_TUNABLES = "glibc.malloc.mmap_max=0" }
"""


def test_old_plans_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(OLD)
    plan = read_plan(path)
    assert plan.settings() == {
        "precision": "int8_dynamic",
        "env": {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0"},
    }
    assert plan.environment() == {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0"}
    assert (plan.workload, plan.measured["p99_ratio"], plan.machine["cores"]) == ("ranker", 0.25, 2)
    assert [fix.reason for fix in plan.fixes] == ["p99 x0.31 [0.28, 0.36]", ""]
    write_plan(plan, tmp_path / "again.toml")
    assert read_plan(tmp_path / "again.toml") == plan


def test_a_list_in_a_plan_is_a_list_of_texts(tmp_path: Path) -> None:
    names = ("encoder.layers.0", 'odd "name"', "ünïcode")
    plan = Plan(workload="w", fixes=(PlannedFix(id="a.b", settings={"keep_precision": names}),))
    assert plan.settings()["keep_precision"] == list(names)
    write_plan(plan, tmp_path / "plan.toml")
    assert "keep_precision = [" in (tmp_path / "plan.toml").read_text()
    assert read_plan(tmp_path / "plan.toml") == plan
    (tmp_path / "plan.toml").write_text(HEAD + FIX + "[fix.settings]\nkeep_precision = [1]\n")
    with pytest.raises(InputError, match=r"plan\.toml:6: found keep_precision = \[1\]; expected a list of module"):
        read_plan(tmp_path / "plan.toml")


def test_a_plan_is_readable() -> None:
    text = plan_text(PLAN)
    assert text.startswith("# A plan for ranker")
    assert 'id = "gc.freeze"\n[fix.settings]\ngc = "freeze"\n' in text
    assert 'env = { OMP_WAIT_POLICY = "PASSIVE", A = "1" }' in text
    assert "python -m latfix.runners.launch plan.toml" in text and "latfix.load_runner" in text
    assert "p99_before_ms = 812.0\n" in text
    text = plan_text(Plan(workload='x\n[fix]\nschema = "y"', fixes=()))
    assert text.startswith("# A plan for x [fix] schema"), "a name does not break out of its comment"


@pytest.mark.parametrize(
    ("verdict", "rounds", "words"),
    [
        ("improved", 4, ", measured and proved (final replay of 4 rounds)."),
        ("inconclusive", 1, ", not proved: undecided (final replay of 1 round)."),
        ("inconclusive", 0, ", not proved: undecided (no final replay)."),
        ("no_gain", 5, ", not proved: no gain was measured (final replay of 5 rounds)."),
        ("", 0, "."),
    ],
)
def test_the_first_line_says_if_the_plan_is_proved(verdict: str, rounds: int, words: str) -> None:
    first, *_ = plan_text(replace(PLAN, verdict=verdict, rounds=rounds)).splitlines()
    assert first == f"# A plan for ranker: settings that latfix changed{words}"


def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be in a plan"):
        write_plan(Plan(workload="x", fixes=(), measured={"p99_ratio": float("nan")}), tmp_path / "plan.toml")
    assert not list(tmp_path.iterdir())


def test_a_plan_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write the plan"):
        write_plan(PLAN, tmp_path / "missing" / "plan.toml")
    write_plan(PLAN, tmp_path / "plan.toml")
    assert read_plan(tmp_path) == PLAN, "a folder means the plan in it"


HEAD = 'schema = "latfix.plan/1"\nworkload = "x"\n'
FIX = '[[fix]]\nid = "gc.freeze"\n'
MALFORMED: list[tuple[str, int | None]] = [
    ("", None),
    ("schema\n", 1),
    ("workload = 'x'\n", None),
    ('schema = "latfix.plan/2"\nworkload = "x"\n', 1),
    ('schema = 1\nworkload = "x"\n', 1),
    ('# plan\n\nschema = ""\n', 3),
    ('schema = "latfix.plan/1"\n', None),
    ('schema = "latfix.plan/1"\nworkload = 3\n', 2),
    ('schema = "latfix.plan/1"\nworkload = " "\n', 2),
    (HEAD + "created = 2026-01-02\n", 3),
    (HEAD + "latfix = 0.1\n", 3),
    (HEAD + "verdict = 'better'\n", 3),
    (HEAD + "verdict = 1\n", 3),
    (HEAD + "rounds = -1\n", 3),
    (HEAD + "rounds = true\n", 3),
    (HEAD + "fixes = []\n", 3),
    (HEAD + "fix = 1\n", 3),
    (HEAD + "fix = [1, 2]\n", 3),
    (HEAD + "[fix]\nid = 'gc.freeze'\n", 3),
    (HEAD + "[runner]\nworkers = 1\n", 3),
    (HEAD + "machine = 'here'\n", 3),
    (HEAD + "[machine]\ncores = [1]\n", 4),
    (HEAD + "[machine]\nmemory = inf\n", 4),
    (HEAD + "measured = []\n", 3),
    (HEAD + "[measured]\np99_before = 1.0\n", 4),
    (HEAD + "[measured]\np99_before_ms = 'slow'\n", 4),
    (HEAD + "[measured]\np99_before_ms = nan\n", 4),
    (HEAD + "[measured]\np99_before_ms = true\n", 4),
    (HEAD + "[[fix]]\n", 3),
    (HEAD + "[[fix]]\nid = 7\n", 4),
    (HEAD + "[[fix]]\nid = 'Freeze'\n", 4),
    (HEAD + "[[fix]]\nid = ''\n", 4),
    (HEAD + FIX + "reason = 1\n", 5),
    (HEAD + FIX + "verified = []\n", 5),
    (HEAD + FIX + "name = 'x'\n", 5),
    (HEAD + FIX + "settings = 3\n", 5),
    (HEAD + FIX + "[fix.settings]\ngc = 'on'\n", 6),
    (HEAD + FIX + "[fix.settings]\nworker = 2\n", 6),
    (HEAD + FIX + "[fix.settings]\nworkers = 0\n", 6),
    (HEAD + FIX + "[fix.settings]\nworkers = true\n", 6),
    (HEAD + FIX + "[fix.settings]\nbatch_window_ms = nan\n", 6),
    (HEAD + FIX + "settings = { gc = 'on' }\n", 5),
    (HEAD + FIX + "[fix.settings.env]\nA = 1\n", 5),
    (HEAD + FIX + "[fix.settings]\nenv.A = 1\n", 6),
    (HEAD + FIX + "\n" + FIX, 7),
    (HEAD + FIX + "[fix.settings]\ngc = 'freeze'\n[[fix]]\nid = 'a.b'\n[fix.settings]\ngc = 'x'\n", 10),
    (HEAD + FIX + "[[fix]]\nid = 'a.b'\n[fix.settings]\nworkers = 'x'\n", 8),
    (HEAD + "x = " + "[" * 5000 + "]" * 5000 + "\n", None),
    (HEAD + "[measured\n", 3),
    (HEAD + 'workload = "again"\n', 3),
]


@pytest.mark.parametrize(("text", "line"), MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_plans_are_one_clear_line(text: str, line: int | None, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_plan(path)
    message = caught.value.message
    where = f"{path}: " if line is None else f"{path}:{line}: "
    assert message.startswith(where), message
    assert "found" in message and "expected" in message and "\n" not in message
    assert len(message) < len(str(path)) + 700


def test_binary_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_plan(tmp_path / "binary.toml")
    with pytest.raises(InputError, match="found no such file; expected a plan"):
        read_plan(tmp_path / "none.toml")
    with pytest.raises(InputError, match="found a path that cannot be read"):
        read_plan(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match="found no such file; expected a plan"):
        read_plan(tmp_path)
