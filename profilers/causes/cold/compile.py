"""``cold.compile``: compilation or graph capture in a request's path, or batches that torch stopped compiling."""

from __future__ import annotations

from functools import partial

import numpy as np

from latfix.arrays import Bools
from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Left, Parts, TailFigures, in_units
from latfix.profilers.causes.marked_units import slow_by_mark
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.probes.pause_probes import LIMIT_SERIES


@in_units("prepare", "lag", "collate", "compute", "finish")
def _claim(evidence: Evidence, left: Left, name: str) -> Parts:
    pauses, unit = evidence.pauses["compile"], evidence.units[name]
    own = pauses.inside(*unit.span, unit.thread, worker=name != "prepare")
    # A compilation in an unknown thread counts as this unit's: as on-CPU time beyond its inputs' need, or as a wait
    # for the lock that it held.
    seen = pauses.unplaced.covered(*unit.span)
    given_up = slow_by_mark(evidence, left, name, _uncompiled(evidence), "uncompiled") if name == "compute" else 0
    on_core = np.maximum(given_up, np.maximum(own, np.minimum(seen, left.cpu_excess(name))))
    return Parts(cpu=on_core, blocked=np.maximum(own, seen))


def _given_up_ns(evidence: Evidence) -> int | None:
    """When torch stopped recompiling a function; ``None`` if it did not."""
    times, hits = evidence.series(LIMIT_SERIES)
    if not hits.any():
        return None
    first = int(np.argmax(hits > 0))
    return int(times[max(first - 1, 0)])


def _uncompiled(evidence: Evidence) -> Bools:
    """Batches after that of shapes that are new since then: no compiled version fits them."""
    batches, since = evidence.batches, evidence.norms.of("compile.given_up", partial(_given_up_ns, evidence))
    if since is None:
        return np.zeros(len(batches["size"]), dtype=bool)
    shapes = np.stack([batches["size"], batches["padded_elements"], batches["padded_length"]], axis=1)
    late = batches["h2d_end_ns"] > since
    known = evidence.norms.of("compile.shapes", lambda: {tuple(shape) for shape in shapes[~late].tolist()})
    return np.asarray(late & ~np.array([tuple(shape) in known for shape in shapes.tolist()], dtype=bool))


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    pauses = evidence.pauses["compile"]
    later = int(np.count_nonzero(_uncompiled(evidence)))
    gave_up = (
        f"; torch reached torch._dynamo.config.recompile_limit, and {later} batches of shapes that came later ran "
        "uncompiled"
    )
    return (
        f"{pauses.count} compilations ran while requests were served, the longest {from_ns(pauses.longest_ns)}; they "
        f"delayed {figures.requests} requests directly or through their batch{gave_up if later else ''}."
    )


CAUSE = Cause(id="cold.compile", fixes=("warmup.shapes",), claim=_claim, sentence=_sentence)
