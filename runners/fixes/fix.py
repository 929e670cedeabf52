"""What a fix is: one declaration that holds all that the search, plans and reports need to know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization_step import Step
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings

if TYPE_CHECKING:
    from latfix.runners.replay.arm import Arm, Watch
    from latfix.traffic.schedule import Traffic

_Measured = TypeVar("_Measured")
Change = dict[str, Any]
#: A precondition: why it is not met, in one clause; empty where it is.
Condition = Callable[["Context"], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a fix may look at when it decides whether and how it applies.

    :param settings: as they stand, with the fixes kept so far.
    :param record: the record of the baseline.
    :param diagnosis: its diagnosis.
    :param default_collate: the adapter batches by the default collate.
    :param cores: cores that the runner may use.
    :param latest: the last replay of the service as it stands; ``None`` where nothing was kept yet.
    :param steps: what became of the fixes that are decided.
    :param found: by fix, what its :class:`SetUp` found.
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
    """A service that ran with the fix, beside one that ran without.

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
    """Whether a fix took effect, and the evidence in one sentence."""

    effective: bool
    evidence: str


class Bench(Protocol):
    """What a fix may measure with (:class:`latfix.runners.optimize.measurement.Bench`).

    :ivar windows: the slices of the traffic that fixes are replayed on.
    :ivar replays: pairs of windows that were replayed so far.
    :ivar max_drop: the largest loss of the score that the workload allows.
    :ivar search_folder: where the search's own records lie.
    """

    baseline: RunRecord
    windows: list[Traffic]
    replays: int
    watch: Watch
    seed: int

    @property
    def max_drop(self) -> float: ...

    @property
    def search_folder(self) -> Path: ...

    def left_s(self) -> float:
        """Seconds of the budget that are left."""

    def arm(self, label: str, settings: RunnerSettings, fixes: tuple[str, ...]) -> Arm:
        """A new service; its process starts at its first use."""

    def lone_arm(self, label: str, settings: RunnerSettings, fixes: tuple[str, ...]) -> Arm:
        """One that has the device to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """What is measured on the bench, once in a search, before a fix can be decided.

    :param due: True once it is worth its time.
    :param measure: the finding, which ``Context.found`` holds from then on. A service that fails is a finding, too.
    :param shown: the finding as a line for people; empty for none.
    :param recorded: ``search.json`` and ``optimization.json`` keep the finding (a JSON object), as ``layers``.
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
    :param relief: the share of those causes' milliseconds that it has been seen to remove; for the order only.
    :param removes: of those causes, the ones that it takes away whole, so that the forecast can leave them out.
    :param compute: what is left of a batch's compute, as a first guess; what is not 1 is measured.
    :param gentle: it changes neither answers nor capacity, so it may be tried together with others like it.
    :param cold: it acts on a service's first requests only, so it is judged on fresh processes.
    :param alone: it acts on how much of a device's memory the service holds, so that there it is judged with nothing
        of the search beside it.
    :param changes_outputs: answers may differ, so accuracy is measured before speed.
    :param accepted: the share of models whose answers it is expected to leave accurate enough; for the order only.
    :param mates_only: they may, only as far as the model's answers hang on who shares a batch: where a service
        answers the same in batches as alone, this changes none.
    :param making_s: seconds that a service takes longer to make with it, seen on the samples: compiling, converting,
        comparing. ``making_gpu_s`` where that differs on a GPU.
    :param needs: its preconditions, in the order in which they are checked.
    :param sets: the settings that it changes, or how they follow from the context.
    :param variables: of the process, those that ``sets`` may set where it follows from the context.
    :param options: of a number, all changes that the forecast may choose from, in the place of ``sets``.
    :param verify: looks for its effect.
    :param set_up: what must be measured before it can be decided.
    :param after: the fix that is decided before it, where that one may be tried at all.
    """

    id: str
    title: str
    treats: tuple[str, ...]
    risk: str
    relief: float
    removes: tuple[str, ...] = ()
    compute: float = 1.0
    gentle: bool = False
    cold: bool = False
    alone: bool = False
    changes_outputs: bool = False
    accepted: float = 1.0
    mates_only: bool = False
    making_s: float = 0.0
    making_gpu_s: float | None = None
    needs: tuple[Condition, ...] = ()
    verify: Callable[[Applied], Verified]
    sets: Mapping[str, Any] | Callable[[Context], Change] = field(default_factory=dict)
    variables: tuple[str, ...] = ()
    set_up: SetUp | None = None
    after: str = ""
    options: Callable[[Context], Sequence[Change]] | None = None

    def obstacle(self, context: Context) -> str:
        """Why it does not apply, by the first precondition that is not met; empty where it applies."""
        return next((reason for condition in self.needs if (reason := condition(context))), "")

    def change(self, context: Context) -> Change:
        """Overrides of the settings."""
        change = self.sets(context) if callable(self.sets) else dict(self.sets)
        assert set(change.get("env", {})) <= set(self.environment), "a plan may hold declared variables only"
        return change

    def changes(self, context: Context) -> Sequence[Change]:
        """Every change that may be chosen, where it applies."""
        return [self.change(context)] if self.options is None else self.options(context)

    @property
    def environment(self) -> tuple[str, ...]:
        """Variables of the process that it may set."""
        return (*self.variables, *({} if callable(self.sets) else self.sets.get("env", {})))

    @property
    def expected_compute(self) -> float:
        """What is left of a batch's compute, as a first guess, where answers may turn out not to be good enough."""
        return 1.0 - self.accepted * (1.0 - self.compute)

    def seconds_to_make(self, device: str) -> float:
        """See ``making_s``."""
        return self.making_s if device == "cpu" or self.making_gpu_s is None else self.making_gpu_s

    def step(self, status: str, reason: str, **more: Any) -> Step:
        """An entry of ``optimization.json`` for it."""
        return Step(fix=self.id, title=self.title, risk=self.risk, status=status, reason=reason, **more)
