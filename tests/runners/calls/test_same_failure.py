"""A replay ends early only if every request failed, and all in the same way."""

from __future__ import annotations

from itertools import count

from latfix.runners.calls.model_call import SameFailure

SECOND = 1_000_000_000


def failed(messages: list[str], every_ns: int = SECOND // 20) -> tuple[SameFailure, int]:
    failure = SameFailure()
    for message, now in zip(messages, count(0, every_ns), strict=False):
        failure.add(message, now)
    return failure, len(messages) * every_ns


def test_failures_that_differ_by_numbers_alone_are_alike() -> None:
    failure, now = failed([f"ValueError: request {k} of a1b2-{k}c has 3 rows" for k in range(60)])
    assert "after 60 requests" in failure.given_up(60, now)
    assert failure.given_up(60, now).endswith("request 0 of a1b2-0c has 3 rows")
    assert not failure.given_up(61, now), "one of them did not fail"


def test_few_or_different_or_quick_failures_do_not_end_a_replay() -> None:
    assert not failed(["x"] * 49)[0].given_up(49, 60 * SECOND)
    assert not failed(["x"] * 30 + ["y"] * 30)[0].given_up(60, 60 * SECOND)
    quick, now = failed(["x"] * 60, 1000)
    assert not quick.given_up(60, now)
