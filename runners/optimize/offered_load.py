"""More requests than the service can serve, to optimize its throughput."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from latfix.config.workload_toml import WorkloadSpec
from latfix.formatting import significant
from latfix.run_record.run_record import RunRecord, throughput_rps
from latfix.runners.replay.arm import Arm, Watch
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import limit, scale_to_duration, without_lead

#: Offered load as a multiple of the measured throughput: a fix may double or triple the latter.
_OVER = 5.0
#: Throughput is measured on this many full batches per worker, and on at least this many requests.
_BATCHES, _FEWEST = 4, 32
#: Share of the budget that serving the requests once takes.
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

    The queue only grows, so that the mean latency falls as throughput rises. Throughput is measured on requests that
    are sent at once; their record is in ``out/at-once``, where a resumed search finds it.
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
        f"sent at once, about {significant(rate)} requests a second are served; {len(taken)} of {len(traffic)} are "
        f"sent {_OVER:g} times as fast: a smaller mean is a higher throughput"
    )
    return _within(taken, len(taken) / (_OVER * rate)) if rate > 0 else taken


def _within(traffic: Traffic, seconds: float) -> Traffic:
    begun = without_lead(traffic)
    return scale_to_duration(begun, seconds) if begun.duration_s > 0 else begun
