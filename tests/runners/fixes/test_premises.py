"""What a fix needs of device, model and settings is declared once; diagnosis and search refuse the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from latfix.cause_catalogue import PREMISES
from latfix.profilers.attribution.naming_rule import applicable
from latfix.profilers.causes import CAUSES
from latfix.run_record.run_meta import RunMeta
from latfix.runners.fixes import FIXES, Context
from latfix.settings import RunnerSettings

BY_ID = {fix.id: fix for fix in FIXES}
NAMED = sorted({fix for cause in CAUSES for fix in cause.fixes})
#: The rule by prefixes that :data:`PREMISES` replaced.
ONLY_GPU = (
    *("quantize.tf32", "quantize.fp8_dynamic", "fuse.tensorrt", "fuse.cudagraph", "fuse.compile_autotune"),
    *("transfer.", "memory.device_allocator", "memory.limit"),
)
ONLY_CPU = (
    *("cache.embeddings", "fuse.onnxruntime", "fuse.openvino", "host.parallel", "host.pin", "host.threads"),
    *("host.wait_policy", "host.workers", "locality.cores"),
)
LAYERS = ("quantize.", "fuse.", "cache.embeddings", "dispatch.inference_mode")
#: Refused a GPU when tried, but was offered for one.
NOW_REFUSED = "quantize.int8_weight_only"


def _as_before(fix: str, meta: RunMeta) -> bool:
    barred: tuple[str, ...] = ONLY_GPU if meta.device == "cpu" else (*ONLY_CPU, NOW_REFUSED)
    barred += LAYERS if meta.entry.endswith((".onnx", ".engine")) else ()
    barred += ("host.routing",) if meta.settings.workers < 2 else ()
    barred += ("host.threads", "host.wait_policy") if meta.torch_threads == 1 else ()
    return not fix.startswith(barred)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_a_diagnosis_offers_the_same_fixes_as_before(device: str) -> None:
    entries = ("adapter:Service", "model.onnx", "model.engine", "model.pt2", "")
    for entry, workers, threads in itertools.product(entries, (1, 2), (None, 1, 4)):
        settings = RunnerSettings(workers=workers)
        meta = RunMeta(device=device, entry=entry, settings=settings, torch_threads=threads)
        assert applicable(tuple(NAMED), meta) == tuple(fix for fix in NAMED if _as_before(fix, meta))


def test_every_premise_is_of_a_fix() -> None:
    assert set(PREMISES) <= set(BY_ID)


@pytest.mark.parametrize("fix", sorted(fix for fix, premise in PREMISES.items() if premise.device))
def test_a_fix_that_applies_refuses_the_other_device(fix: str, calling: Callable[..., Context]) -> None:
    context = calling(BY_ID[fix])
    assert PREMISES[fix].allows(context.device) and BY_ID[fix].obstacle(context) == ""
    other = "cpu" if PREMISES[fix].device == "cuda" else "cuda:0"
    record = replace(context.record, meta=replace(context.record.meta, device=other))
    assert not PREMISES[fix].allows(other) and BY_ID[fix].obstacle(replace(context, record=record))


def test_a_fix_that_applies_refuses_too_few_workers(calling: Callable[..., Context]) -> None:
    context = calling(BY_ID["host.routing"])
    fewer = replace(context.settings, workers=PREMISES["host.routing"].workers - 1)
    assert BY_ID["host.routing"].obstacle(replace(context, settings=fewer)) == "there is only one worker"
