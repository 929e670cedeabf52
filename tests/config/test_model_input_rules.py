"""``[inputs]`` of ``workload.toml``: parsed, or refused with the line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from latfix.config.model_input_rules import InputRule, is_batch, parse_inputs
from latfix.errors import InputError
from latfix.files.toml_reader import TomlFile
from latfix.traffic.feature_expressions import Expression


def parse(text: str) -> dict[str, InputRule]:
    return parse_inputs(tomllib.loads(text)["inputs"], TomlFile(Path("workload.toml"), text))


def sources(rule: InputRule) -> list[int | str]:
    return [size.source if isinstance(size, Expression) else size for size in rule.shape or ()]


def test_everything_is_read() -> None:
    rules = parse(
        '[inputs]\ntokens = { shape = ["batch", "min(length, 9)", 4], dtype = "int64", low = 1, high = 9, pad = 2 }\n'
        '"input.1" = {}\n[inputs.mask]\nshape = [3]\n'
    )
    assert sources(rules["tokens"]) == ["batch", "min(length, 9)", 4]
    assert [is_batch(size) for size in rules["tokens"].shape or ()] == [True, False, False]
    tokens = rules["tokens"]
    assert (tokens.dtype, tokens.low, tokens.high, tokens.pad) == ("int64", 1, 9, 2)
    assert rules["input.1"].shape is None and rules["input.1"].pad is None
    assert sources(rules["mask"]) == [3]
    assert rules["tokens"].where == "workload.toml:2" and rules["mask"].where == "workload.toml:4"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("x = 3", "x = 3"),
        ('x = ["batch"]', "expected a table like"),
        ('x = { shapes = ["batch"] }', "did you mean 'shape'"),
        ("x = { shape = 3 }", "shape = 3"),
        ('x = { shape = "batch" }', "shape = 'batch'"),
        ("x = { shape = [0] }", "the size 0"),
        ("x = { shape = [-1] }", "the size -1"),
        ("x = { shape = [true] }", "the size True"),
        ("x = { shape = [1.5] }", "the size 1.5"),
        ("x = { shape = [99999999999] }", "the size 99999999999"),
        ('x = { shape = ["batch", "batch"] }', '"batch" twice'),
        ('x = { shape = ["2 * batch"] }', "expected it alone"),
        ('x = { shape = ["a ** 2"] }', "a ** 2"),
        ('x = { shape = [""] }', "does not parse"),
        ('x = { shape = ["__import__(1)"] }', "__import__"),
        ('x = { dtype = "int65" }', "int65"),
        ("x = { dtype = 3 }", "dtype = 3"),
        ("x = { low = 3 }", "no high"),
        ("x = { low = 3, high = 3 }", "a low below the high"),
        ("x = { high = -3 }", "a low below the high"),
        ("x = { high = nan }", "high = nan"),
        ('x = { high = "9" }', "high = '9'"),
        ("x = { high = true }", "high = True"),
        ("x = { high = 1e300 }", "64 bits"),
        ("x = { pad = inf }", "pad = inf"),
    ],
)
def test_mistakes_name_their_line(line: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(f"[inputs]\n{line}\n")
    assert says in caught.value.message
    assert caught.value.message.startswith("workload.toml:2: ")
    assert "\n" not in caught.value.message


def test_no_table() -> None:
    with pytest.raises(InputError, match=r"a table \[inputs\]"):
        parse("inputs = 3\n")
