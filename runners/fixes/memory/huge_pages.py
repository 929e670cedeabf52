"""``memory.huge_pages``: heap and weights in pages of 2 MiB: one fault instead of 512, and fewer TLB misses."""

from __future__ import annotations

import sys

from latfix.formatting import mebibytes
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.memory.allocator import WORTH_IT
from latfix.runners.fixes.shared.conditions import at_default, refusals
from latfix.runners.fixes.shared.run_evidence import faults_per_request, faults_words
from latfix.runners.host.process_setup import glibc_version, huge_page_mode

_MIB = 1 << 20
#: Size of the weights beyond which the TLB does not cover small pages.
_LARGE_MODEL = 32 * _MIB
#: Minimum additional memory in huge pages that shows that they are used.
_MORE = 8 * _MIB
#: The first version of glibc that requests huge pages for its heap.
_GLIBC = (2, 35)


def _pages_on_demand(_: Context) -> str:
    if not sys.platform.startswith("linux"):
        return "only Linux has transparent huge pages"
    mode = huge_page_mode()
    if mode == "always":
        return "the kernel gives huge pages to every process already"
    if mode != "madvise":
        return "transparent huge pages are off in the kernel (/sys/kernel/mm/transparent_hugepage/enabled)"
    version = glibc_version()
    if version is None or version < _GLIBC:
        return "the C library does not request huge pages; glibc does from 2.35 on"
    return ""


def _memory_to_map(context: Context) -> str:
    faults, model = faults_per_request(context.record), context.record.meta.memory.model_bytes
    if faults < WORTH_IT and model < _LARGE_MODEL:
        weights = f", and the weights are {mebibytes(model)}" if model else ""  # of torch: others are not known
        return f"only {faults_words(faults)}{weights}"
    return ""


def _verify(applied: Applied) -> Verified:
    now, before = applied.both(lambda record: record.meta.memory.huge_bytes)
    faults, were = applied.both(faults_per_request)
    text = f"{mebibytes(now)} in huge pages, {mebibytes(before)} without; "
    text += f"{faults_words(faults)}, was {were:.0f}"
    return Verified(now >= before + _MORE, "; ".join([text, *refusals(applied.record, "huge_pages")]))


FIX = Fix(
    id="memory.huge_pages",
    title="put heap and weights into transparent huge pages",
    treats=("memory.page_faults", "memory.allocator", "host.slowdown"),
    relief=0.4,
    gentle=True,
    risk="resident memory a little higher; the kernel may stall while it makes room for them",
    needs=(at_default("huge_pages", "huge_pages = {} already"), _pages_on_demand, _memory_to_map),
    sets={"huge_pages": "always"},
    verify=_verify,
)
