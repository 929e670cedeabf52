"""A fix: one declaration with everything that the search, plans and reports need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization_step import Step
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings

if TYPE_CHECKING:
    from latfix.runners.optimize.measurement import Bench
    from latfix.runners.replay.arm import Arm

_Measured = TypeVar("_Measured")
Change = dict[str, Any]
#: A precondition: why it is not met, in one clause; empty if it is.
Condition = Callable[["Context"], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Input for the preconditions and settings of a fix.

    :param settings: current settings, with the fixes kept so far.
    :param record: of the baseline.
    :param diagnosis: of the baseline.
    :param default_collate: the adapter uses the default collate.
    :param cores: cores that the runner may use.
    :param latest: last replay of the current best; ``None`` if no fix was kept yet.
    :param steps: results of the decided fixes.
    :param found: by fix, the result of its :class:`SetUp`.
    """

    settings: RunnerSettings
    record: RunRecord
    diagnosis: Diagnosis
    default_collate: bool
    cores: int
    latest: RunRecord | None = None
    steps: Sequence[Step] = ()
    found: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """The device that the baseline ran on: ``cpu`` or a CUDA device."""
        return self.record.meta.device

    @property
    def on_cpu(self) -> bool:
        """True if the model runs on the CPU."""
        return self.device == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A service that ran with the fix, and one that ran without.

    :param evidence: of the service with the fix (:meth:`latfix.runners.service.loaded_service.Service.evidence`).
    :param record: its replay.
    :param without: the replay of the service without the fix.
    """

    evidence: Mapping[str, Any]
    record: RunRecord
    without: RunRecord

    @property
    def settings(self) -> RunnerSettings:
        """The settings that the service with the fix ran with."""
        return self.record.meta.settings

    def both(self, measure: Callable[[RunRecord], _Measured]) -> tuple[_Measured, _Measured]:
        """``measure`` of the replay with the fix, and of the one without."""
        return measure(self.record), measure(self.without)


@dataclass(frozen=True, slots=True)
class Verified:
    """True if a fix took effect, and the evidence in one sentence."""

    effective: bool
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """A measurement on the bench, once in a search, that a fix needs before it can be decided.

    :param due: True once it is worth its time.
    :param measure: returns the result for ``Context.found``, also if the service fails.
    :param shown: the result as a line for the user; empty for none.
    :param recorded: keep the result (a JSON object) in ``search.json``, and as ``layers`` in ``optimization.json``.
    """

    due: Callable[[Context], bool]
    measure: Callable[[Bench, Arm], Any]
    shown: Callable[[Any], str] = lambda _: ""
    recorded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One fix.

    :param id: as in plans and reports; also the module's path (see :mod:`latfix.runners.fixes`).
    :param title: what it does, in a few words, for reports.
    :param treats: ids of the causes that it treats.
    :param risk: what it may cost, for reports.
    :param relief: usual share of those causes' milliseconds that it removes; only for the order of trials.
    :param removes: causes that it removes completely, so that the forecast leaves them out.
    :param compute: expected ratio of a batch's compute; anything but 1 changes how the model runs, and is measured.
    :param launches: it removes what the device waits for launches: the baseline's profiles tell how much that is.
    :param gentle: it changes neither answers nor capacity, so it may be tried together with other gentle fixes.
    :param cold: it acts only on a service's first requests, so it is judged on fresh processes.
    :param alone: it acts on the device memory of the service, so it is judged with no other service on the device.
    :param changes_outputs: answers may differ, so accuracy is measured before speed.
    :param accepted: expected share of models that stay accurate enough with it; only for the order of trials.
    :param mates_only: answers may differ only through the other requests in a batch; if a service answers the same in
        batches as alone, they do not.
    :param reorders: it changes which request is served first, so the mean wait may fall although no more are served.
    :param stateless: a model that keeps state between requests would answer differently: it gives a model other
        inputs, or requests to more instances of it. So it would if ``reorders``.
    :param making_s: additional seconds to make a service with it (compile, convert, compare), measured on the
        samples, or a function of the baseline's ``run.json``; ``making_gpu_s`` on a GPU, if that differs.
    :param needs: preconditions, in the order in which they are checked.
    :param sets: the settings that it changes, or a function that returns them.
    :param variables: environment variables that such a function may set.
    :param options: returns all changes that the forecast may choose from; replaces ``sets``.
    :param verify: checks that it took effect.
    :param set_up: measurement that it needs before it can be decided.
    :param after: the fix that is decided before it.
    """

    id: str
    title: str
    treats: tuple[str, ...]
    risk: str
    relief: float
    removes: tuple[str, ...] = ()
    compute: float = 1.0
    launches: bool = False
    gentle: bool = False
    cold: bool = False
    alone: bool = False
    changes_outputs: bool = False
    accepted: float = 1.0
    mates_only: bool = False
    reorders: bool = False
    stateless: bool = False
    making_s: float | Callable[[RunMeta], float] = 0.0
    making_gpu_s: float | None = None
    needs: tuple[Condition, ...] = ()
    verify: Callable[[Applied], Verified]
    sets: Mapping[str, Any] | Callable[[Context], Change] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    set_up: SetUp | None = None
    after: str = ""
    options: Callable[[Context], Sequence[Change]] | None = None

    def obstacle(self, context: Context) -> str:
        """Why it does not apply: the first precondition that is not met; empty if it applies."""
        return next((reason for condition in self.needs if (reason := condition(context))), "")

    def change(self, context: Context) -> Change:
        """The settings that it changes."""
        change = self.sets(context) if callable(self.sets) else dict(self.sets)
        assert set(change.get("env", {})) <= set(self.environment), "a plan may hold declared variables only"
        return change

    def changes(self, context: Context) -> Sequence[Change]:
        """All changes to choose from, if it applies."""
        return [self.change(context)] if self.options is None else self.options(context)

    @property
    def environment(self) -> tuple[str, ...]:
        """Environment variables that it may set."""
        return (*self.variables, *({} if callable(self.sets) else self.sets.get("env", {})))

    def expected_compute(self, baseline: RunMeta) -> float:
        """Expected ratio of a batch's compute, weighted by the chance that answers stay accurate enough.

        A device that mostly waits for launches gains from fewer launches, and little from faster operators.
        """
        saved = 1.0 - self.compute
        if profiled := [work for work in baseline.device_profile if work.span_ns]:
            waiting = median(work.launch_ns / work.span_ns for work in profiled)
            saved = waiting if self.launches else saved * (1.0 - waiting)
        return 1.0 - self.accepted * saved

    def seconds_to_make(self, baseline: RunMeta) -> float:
        """Additional seconds to make a service with it, for the model and device of the baseline."""
        if baseline.device != "cpu" and self.making_gpu_s is not None:
            return self.making_gpu_s
        return self.making_s(baseline) if callable(self.making_s) else self.making_s

    def step(self, status: str, reason: str, **more: Any) -> Step:
        """Its entry in ``optimization.json``."""
        return Step(fix=self.id, title=self.title, risk=self.risk, status=status, reason=reason, **more)
