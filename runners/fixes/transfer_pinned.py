"""``transfer.pinned``: batches and answers are copied through preallocated pinned memory."""

from __future__ import annotations

from latfix.formatting import share
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, on_its_device

#: Maximum share of bytes in pageable memory: answers that a model does not return as tensors of its own.
_MOST_PAGEABLE = 0.01


def _copied(record: RunRecord) -> tuple[int, int]:
    """Bytes that were copied from or to pageable memory, and all."""
    batches = record.batches
    return int(batches["pageable_bytes"].sum()), int((batches["copy_in_bytes"] + batches["copy_out_bytes"]).sum())


def _verify(applied: Applied) -> Verified:
    (pageable, total), (was, whole) = applied.both(_copied)
    meta = applied.record.meta
    copies = (
        f"{share(pageable / max(total, 1))} of the bytes were copied from or to memory that is not pinned, "
        f"{share(was / max(whole, 1))} before; {meta.pool_hits or 0} batch tensors were written into "
        f"existing buffers, {meta.pool_misses or 0} needed a new one"
    )
    return Verified(total > 0 and pageable <= _MOST_PAGEABLE * total < was, copies)


FIX = Fix(
    id="transfer.pinned",
    title="pinned staging buffers for copies to and from the GPU",
    treats=("transfer.copy",),
    relief=0.7,
    gentle=True,
    risk="pinned memory of the largest batches is kept; batches of the workload's own collate are copied once more "
    "on the host",
    needs=(
        on_its_device("transfer.pinned", "the model runs on the CPU: there is no device to copy to"),
        at_default("pinned_staging", "batches and answers are copied through pinned memory already"),
    ),
    sets={"pinned_staging": True},
    verify=_verify,
)
