"""Settings on the command line as ``KEY=VALUE``, with the rules of ``workload.toml``."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from latfix.errors import InputError
from latfix.formatting import did_you_mean

if TYPE_CHECKING:
    from latfix.settings import Rule

#: The end of one ``KEY=VALUE``: a comma before the next one.
_NEXT = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)")


def setting_rule(key: str, but: Collection[str] = ()) -> Rule:
    """The rule for the values of a setting.

    :param but: settings that are not allowed here.
    :raises InputError: there is no such setting; names the nearest one.
    """
    from latfix.settings import RunnerSettings, rules_of

    rules = {name: rule for name, rule in rules_of(RunnerSettings).items() if name not in but}
    if key not in rules:
        advice = did_you_mean(key, rules, f"settings are {', '.join(rules)}")
        found = f"{key!r}, which cannot be listed" if key in but else f"{key!r}, which is not a setting"
        raise InputError(f"--set: found {found}; {advice}")
    return rules[key]


def setting_value(key: str, text: str, rule: Rule) -> Any:
    """The value as in TOML, with strings unquoted.

    :raises InputError: the setting does not allow it; names the nearest allowed one.
    """
    value = _value(text)
    if not rule.check(value):
        near = did_you_mean(text, rule.choices)
        raise InputError(f"--set {key}: found {text!r}; expected {rule.expected}{f'; {near}' if near else ''}")
    return value


def parse_changes(text: str) -> dict[str, Any]:
    """Settings of ``KEY=VALUE[,KEY=VALUE…]``, for ``RunnerSettings.with_overrides``.

    An environment variable is ``env.NAME=TEXT``; modules are listed as ``keep_precision=NAME,NAME``.

    :raises InputError: an unknown setting, or an invalid value.
    """
    changes: dict[str, Any] = {}
    for part in _NEXT.split(text):
        key, equals, written = (word.strip() for word in part.partition("="))
        if not equals or not written:
            expected = "KEY=VALUE[,KEY=VALUE…], as in precision=bf16,max_batch_size=1"
            raise InputError(f"--set: found {text!r}; expected {expected}")
        if key in changes or (key.startswith("env.") and key[4:] in changes.get("env", {})):
            raise InputError(f"--set: found {key} twice in {text!r}; expected each setting once")
        if key.partition(".")[0] == "env":
            one = {key[4:]: written.strip("\"'")}
            if not setting_rule("env").check(one):
                expected = "env.NAME=TEXT, as in env.OMP_WAIT_POLICY=PASSIVE"
                raise InputError(f"--set: found {part.strip()!r}; expected {expected}")
            changes["env"] = {**changes.get("env", {}), **one}
        elif key == "keep_precision":
            changes[key] = [name.strip() for name in written.split(",")]
            if not setting_rule(key).check(changes[key]):
                raise InputError(f"--set {key}: found {written!r}; expected names of modules, as in a.b,a.c")
        else:
            rule = setting_rule(key)
            value = setting_value(key, written, rule)
            changes[key] = float(value) if rule.is_float else value
    return changes


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d{1,3})?", text):
        return float(text)
    return text.strip("\"'")
