"""Fixes of an optimization that were not tried, by what kept them from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from latfix.results.optimization import TriedFix

#: How reasons begin that speak of time, or of ``--trials``.
BUDGET = "budget: "
#: What the reasons hold that an installation would remove.
_INSTALLATION = "not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """Skipped steps, each fix in one of three lists, in the order of the document.

    :param reasons: by fix, of all of them.
    :param for_time: those that apply, but for which the budget left nothing.
    :param to_install: those that need a package or a library which is not there.
    :param inapplicable: those that have nothing to change here.
    """

    reasons: Mapping[str, str]
    for_time: tuple[str, ...]
    to_install: tuple[str, ...]
    inapplicable: tuple[str, ...]


def untried_of(steps: Sequence[TriedFix]) -> Untried:
    """The skipped ones of an optimization's steps."""
    reasons = {step.fix: step.reason for step in steps if step.status == "skipped"}
    for_time = tuple(fix for fix, reason in reasons.items() if reason.startswith(BUDGET))
    to_install = tuple(fix for fix, reason in reasons.items() if _INSTALLATION in reason and fix not in for_time)
    other = tuple(fix for fix in reasons if fix not in for_time and fix not in to_install)
    return Untried(reasons=reasons, for_time=for_time, to_install=to_install, inapplicable=other)
