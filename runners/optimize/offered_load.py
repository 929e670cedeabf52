"""More requests than the service can serve, where it is judged by its throughput."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from latfix.config.workload_toml import WorkloadSpec
from latfix.formatting import significant
from latfix.run_record.run_record import RunRecord, throughput_rps
from latfix.runners.replay.arm import Arm, Watch
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import limit, scale_to_duration

#: Requests come so many times as fast as the service serves them: a fix may make it twice or three times as fast.
_OVER = 5.0
#: What it serves is seen on so many full batches a worker, and on so many requests at least.
_BATCHES, _FEWEST = 4, 32
#: Serving the requests once takes about this share of the budget.
_SHARE = 0.15
_AT_ONCE_S = 0.001


def saturating(
    spec: WorkloadSpec,
    traffic: Traffic,
    settings: RunnerSettings,
    out: Path,
    *,
    budget_s: float,
    watch: Watch,
    say: Callable[[str], None],
    seed: int = 0,
) -> Traffic:
    """The first requests of the traffic, several times as fast as the service can serve them.

    With a queue that only grows, the mean latency is what the requests before one take: it falls as throughput rises.
    What the service can serve is seen on some requests that come at once, in ``out/at-once``; a search that goes on
    finds them there.
    """
    folder = out / "at-once"
    if not folder.is_dir():
        few = limit(traffic, max(_BATCHES * settings.max_batch_size * settings.workers, _FEWEST))
        arm = Arm("at once", spec, settings, (), out / "runner.log")
        try:
            arm.replay(folder, _within(few, _AT_ONCE_S), watch, seed=seed)
        finally:
            arm.close()
    rate = throughput_rps([RunRecord.load(folder)])
    taken = limit(traffic, max(int(rate * _SHARE * budget_s), _FEWEST))
    say(
        f"sent at once, about {significant(rate)} requests a second are served; {len(taken)} of {len(traffic)} come "
        f"{_OVER:g} times as fast: a smaller mean is a higher throughput"
    )
    return _within(taken, len(taken) / (_OVER * rate)) if rate > 0 else taken


def _within(traffic: Traffic, seconds: float) -> Traffic:
    return scale_to_duration(traffic, seconds) if traffic.duration_s > 0 else traffic
