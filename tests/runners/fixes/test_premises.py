"""What a fix needs of device, model and settings is declared once; diagnosis and search refuse the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from latfix.cause_catalogue import PREMISES
from latfix.runners.fixes import FIXES
from tests.runners.fixes.conftest import calling

BY_ID = {fix.id: fix for fix in FIXES}


def test_every_premise_is_of_a_fix() -> None:
    assert set(PREMISES) <= set(BY_ID)


@pytest.mark.parametrize("fix", sorted(fix for fix, premise in PREMISES.items() if premise.device))
def test_a_fix_that_applies_refuses_the_other_device(fix: str) -> None:
    context = calling(BY_ID[fix])
    assert PREMISES[fix].allows(context.device) and BY_ID[fix].obstacle(context) == ""
    other = "cpu" if PREMISES[fix].device == "cuda" else "cuda:0"
    record = replace(context.record, meta=replace(context.record.meta, device=other))
    assert not PREMISES[fix].allows(other) and BY_ID[fix].obstacle(replace(context, record=record))


def test_a_fix_that_applies_refuses_too_few_workers() -> None:
    context = calling(BY_ID["host.routing"])
    fewer = replace(context.settings, workers=PREMISES["host.routing"].workers - 1)
    assert BY_ID["host.routing"].obstacle(replace(context, settings=fewer)) == "the service as it is has one worker"
