"""``batching.*``: costs of sharing a batch.

``batching.window``: waits for the batch timer while the worker was free.
``batching.size``: longer compute because others shared the batch, and a finish after theirs.
``batching.padding``: time computed on padding; of a service behind an address, a part of the size.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import counted, from_ns, percent
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, median_and_p99
from latfix.profilers.evidence.expected_work import jackknife_error
from latfix.profilers.evidence.run_baselines import quiet_median
from latfix.profilers.evidence.units import Evidence, spread
from latfix.queueing.length_buckets import padding_share


def _window_claim(evidence: Evidence, _left: Left) -> Claim:
    return Claim(own={"window": evidence.window}, usual={"window": 0})


def _window_sentence(evidence: Evidence, figures: TailFigures) -> str:
    waited = evidence.window[evidence.ok]
    return (
        f"the batch timer is {from_ns(evidence.setup.window_ns)}; with a free worker, requests waited "
        f"{median_and_p99(waited)} for more requests to fill the batch; {figures.parts}."
    )


def _size_claim(evidence: Evidence, _left: Left) -> Claim:
    expected = evidence.expected
    finish, quiet = evidence.units["finish"].wall, evidence.quiet
    turn = evidence.ahead_in_batch * evidence.norms.of("typical_finish", lambda: quiet_median(finish, quiet))
    size = np.minimum(evidence.batches["size"], len(expected.typical) - 1)
    # A batch delays the requests behind it only if it takes longer than its members one by one.
    one_by_one = size * expected.typical[min(1, len(expected.typical) - 1)]
    # The reference of the three parts of modelled compute is the median of their sum, not the sum of their medians.
    # The difference is this cause's usual part.
    unpadded, padded = evidence.of_batch(expected.unpadded), evidence.of_batch(expected.padded)
    typical_batch = evidence.norms.of("typical_batch", lambda: quiet_median(padded, quiet))
    others = evidence.norms.of(
        "typical_batch_by_parts",
        lambda: quiet_median(expected.alone, quiet) + quiet_median(padded - unpadded, quiet),
    )
    return Claim(
        own={"compute": unpadded - expected.alone, "finish_wait": turn},
        usual={"compute": typical_batch - others},
        behind=np.maximum(expected.typical[size] - one_by_one, 0),
        doubt=jackknife_error(_sharing(evidence)),
    )


def _sharing(evidence: Evidence) -> Floats:
    """``(folds, n)``: cost of sharing the batch by request, by the fit without each fold."""
    at_member = [spread(of_fold, evidence.batch_of) for of_fold in evidence.expected.unpadded_of]
    return np.asarray(np.stack(at_member) - evidence.expected.alone_of, dtype=np.float64)


def _size_sentence(evidence: Evidence, figures: TailFigures) -> str:
    size = evidence.of_batch(evidence.batches["size"])[evidence.ok]
    return (
        f"the median request was in a batch of {np.median(size):.0f}, the largest batch had {size.max()}; beyond a "
        f"typical batch, {figures.parts}."
    )


def _window_outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    rule = evidence.setup.rule
    how = "" if rule is None else f"{rule.sentence}; "
    waited = median_and_p99(evidence.window[evidence.ok])
    return f"{how}with a free worker, requests waited {waited}; {figures.parts}."


def _size_outside(evidence: Evidence, left: Left) -> Claim:
    """The others in an inferred batch; of streams, standstills of all that ended with a new request's first output.

    Such a standstill is the new request's prefill in their batch.
    """
    if evidence.setup.rule is not None:
        return _shared_outside(evidence, left)
    still = evidence.standstills
    new = {"compute": still.newcomers[evidence.head], "finish": still.newcomers}
    waited = {name: np.where(new[name], 0, still.prefill.covered(*evidence.units[name].span)) for name in new}
    return Claim(units={name: Parts(excess=each) for name, each in waited.items()})


def _shared_outside(evidence: Evidence, left: Left) -> Claim:
    """All that the batch computes beyond the request alone, padding included, and the answers before its own."""
    size, quiet = _size_claim(evidence, left), evidence.quiet
    padding = evidence.expected.padded - evidence.expected.unpadded
    rest = evidence.of_batch(padding - evidence.units["compute"].wall) + evidence.rows["compute_ns"]
    usual = size.usual["compute"] + evidence.norms.of("rest_of_batch", lambda: quiet_median(rest, quiet))
    one_by_one = np.zeros_like(padding) if size.behind is None else size.behind
    return replace(
        size,
        own={"compute": size.own["compute"] + rest},
        usual={"compute": usual},
        behind=one_by_one + padding,
    )


def _size_outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    if evidence.setup.rule is not None:
        return _size_sentence(evidence, figures)
    still = evidence.standstills
    return (
        f"all streams paused together {counted(len(still.prefill), 'time')}, for up to "
        f"{from_ns(still.prefill.longest_ns)}, until a new request's first output: its prefill shared their batch; "
        f"{figures.parts}."
    )


def _padding_claim(evidence: Evidence, _left: Left) -> Claim:
    padding = evidence.expected.padded - evidence.expected.unpadded
    error = spread(jackknife_error(evidence.expected.padded_of - evidence.expected.unpadded_of), evidence.batch_of)
    return Claim(own={"compute": evidence.of_batch(padding)}, behind=padding, doubt=error)


def _padding_sentence(evidence: Evidence, figures: TailFigures) -> str:
    share = padding_share(evidence.batches)
    return f"{percent(share)} of the computed elements were padding; {figures.parts}."


WINDOW = Cause(
    id="batching.window",
    fixes=("batch.window", "batch.adaptive", "batch.continuous"),
    claim=_window_claim,
    sentence=_window_sentence,
    outside=_window_claim,
    outside_sentence=_window_outside_sentence,
    outside_needs=lambda evidence: evidence.setup.rule is not None,
)
SIZE = Cause(
    id="batching.size",
    fixes=("batch.size", "batch.bucket", "batch.adaptive", "batch.continuous"),
    claim=_size_claim,
    sentence=_size_sentence,
    outside=_size_outside,
    outside_sentence=_size_outside_sentence,
    outside_needs=lambda evidence: evidence.setup.rule is not None or bool((evidence.rows["chunks"] > 1).any()),
)
PADDING = Cause(
    id="batching.padding", fixes=("batch.bucket", "batch.size"), claim=_padding_claim, sentence=_padding_sentence
)
