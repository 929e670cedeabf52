"""The journal of a search: its results on disk after every step that took time, to resume an interrupted search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from latfix.config.settings_tables import validate_settings
from latfix.errors import InputError
from latfix.files.atomic_write import write_json
from latfix.files.json_documents import Document
from latfix.files.strict_json import read_json
from latfix.files.toml_reader import TomlFile
from latfix.formatting import shown
from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.results.optimization import Prediction
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import Fix
from latfix.runners.host.apply_plan import check_environment
from latfix.runners.optimize.configuration import Alternative, Choice, Configuration
from latfix.runners.optimize.findings import Trial
from latfix.runners.optimize.measurement import SEARCH_FOLDER
from latfix.runners.optimize.screening_decision import Pairs, compare_windows, joined
from latfix.runners.optimize.search import Search
from latfix.settings import RunnerSettings

JOURNAL_FILE = "search.json"
#: Maximum plausible time: about 30 years.
_MOST_S = 1e9
_ANEW = "this search cannot be resumed: start a new one without --resume, in another folder"
#: A resumed search tries these again: more time or data may decide them.
_OPEN = ("skipped", "undecided")
_STATUSES = ("ready", "kept", "rejected", "no_gain", "not_effective", *_OPEN)
#: Fields of a trial that the journal keeps as they are.
_OF_TRIAL = ("status", "reason", "prediction", "scored", "verified", "pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice(Document):
    fix: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way(Document):
    """See :class:`latfix.runners.optimize.configuration.Alternative`."""

    choices: tuple[_Choice, ...]
    status: str
    reason: str
    cost: BatchCost | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed(Document):
    """See :class:`latfix.runners.optimize.search.Trial`."""

    choices: tuple[_Choice, ...]
    status: str
    reason: str
    score: float | None = None
    prediction: Prediction | None = None
    scored: Mapping[str, Any] = field(default_factory=dict)
    verified: Mapping[str, str] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def decided(self) -> bool:
        """False if a resumed search should try it again; what only the final replay tested was kept unproven."""
        return self.status not in _OPEN and (self.status != "kept" or bool(self.pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal(Document):
    """Progress of an optimization: ``search.json`` in its folder.

    :param settings: of the baseline; ``traffic_sha256`` of its schedule: both must be the same to resume.
    :param stretch_s: maximum seconds of the traffic that were replayed, its busiest stretch.
    :param load_s: seconds to load the service; ``accuracy_s`` seconds to measure its accuracy.
    :param replays: number of pairs of windows replayed so far, which numbers their folders.
    :param found: by fix, the result of its set-up, if that is recorded.
    :param ineffective: by fix, the evidence that it took no effect.
    :param answers: check of the baseline's answers (:class:`latfix.results.answer_check.AnswerCheck`).
    """

    SCHEMA: ClassVar[str] = "latfix.search/2"

    settings: Mapping[str, Any]
    traffic_sha256: str
    stretch_s: float
    seed: int
    accuracy: float
    accuracy_kind: str
    load_s: float
    accuracy_s: float
    replays: int = 0
    found: Mapping[str, Any] = field(default_factory=dict)
    ways: tuple[_Way, ...] = ()
    trials: tuple[_Replayed, ...] = ()
    ineffective: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Replace the file atomically."""
        write_json(folder / JOURNAL_FILE, self.to_json())

    @classmethod
    def read(cls, folder: Path) -> Journal:
        """The journal in an optimization's folder.

        :raises InputError: there is none, or it is from another version, or was edited.
        """
        file = folder / JOURNAL_FILE
        try:
            document = read_json(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(
                f"{file}: found no such file; expected the folder of an optimization that finished its baseline; "
                "start a new one without --resume"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{file}: found a file that cannot be read ({error}); {_ANEW}") from error
        if not isinstance(document, dict) or document.get("schema") != cls.SCHEMA:
            raise InputError(f"{file}: found no journal of a search; expected schema {cls.SCHEMA!r}; {_ANEW}")
        try:
            journal = cls.from_json(document)
        except InputError as error:
            raise InputError(f"{file}: {error.message}; {_ANEW}") from error
        seconds = (journal.load_s, journal.accuracy_s, journal.stretch_s)
        if not all(0 <= each <= _MOST_S for each in seconds) or journal.replays < 0 or journal.seed < 0:
            raise InputError(f"{file}: found an impossible time or count; {_ANEW}")
        return journal

    def check(self, folder: Path, settings: Mapping[str, Any], traffic_sha256: str, seed: int) -> None:
        """Refuse to resume with other input.

        :raises InputError: workload settings, traffic or seed are not those of the journal.
        """
        file = folder / JOURNAL_FILE
        if traffic_sha256 != self.traffic_sha256:
            raise InputError(f"{file}: found other traffic than this command's; pass the same options as before")
        if seed != self.seed:
            raise InputError(f"{file}: found seed {self.seed}; expected {seed}; pass --seed {self.seed}")
        for name, value in settings.items():
            if self.settings.get(name) != value:
                was = self.settings.get(name)
                raise InputError(f"{file}: found {name} = {was!r} in its baseline; expected the current {value!r}")

    def restore(self, folder: Path, search: Search, known: Mapping[str, Fix]) -> None:
        """Give a search the results that are decided.

        :param known: all fixes, by id.
        :raises InputError: a fix, a setting or a record is not known to this version of latfix.
        """
        file = folder / JOURNAL_FILE
        try:
            ways = [
                Alternative(
                    choices=_chosen(each, file, known, search.first), **_same(each, "status", "reason", "cost")
                )
                for each in self.ways
            ]
            trials = [_trial(each, file, self.seed, known, search.first) for each in self.trials if each.decided]
        except InputError as error:
            raise InputError(f"{error.message}; {_ANEW}") from error
        search.restore(ways, trials, self.found, self.ineffective)


def entries_of(search: Search) -> dict[str, Any]:
    """Fields of the journal that a search fills."""
    return {
        "found": search.recorded,
        "ways": tuple(
            _Way(choices=_choices(each.choices), **_same(each, "status", "reason", "cost"))
            for each in search.known.alternatives
        ),
        "trials": tuple(
            _Replayed(choices=_choices(each.configuration.choices), score=each.score, **_same(each, *_OF_TRIAL))
            for each in search.known.trials
        ),
        "ineffective": search.known.ineffective,
    }


def _same(source: object, *names: str) -> dict[str, Any]:
    """Fields that have the same name in the search and in its journal."""
    return {name: getattr(source, name) for name in names}


def _choices(choices: Sequence[Choice]) -> tuple[_Choice, ...]:
    return tuple(_Choice(fix=choice.fix.id, settings=choice.change) for choice in choices)


def _chosen(
    entry: _Way | _Replayed, file: Path, known: Mapping[str, Fix], first: RunnerSettings
) -> tuple[Choice, ...]:
    """The choices of an entry, which is checked."""
    choices = []
    for each in entry.choices:
        if each.fix not in known:
            raise InputError(f"{file}: found fix {shown(each.fix)}, which this version of latfix does not know")
        settings = validate_settings(each.settings, TomlFile(file), "settings")
        check_environment(settings.get("env", {}), first, file, known[each.fix].environment)
        choices.append(Choice(known[each.fix], settings))
    if entry.status not in _STATUSES:
        raise InputError(f"{file}: found status {shown(entry.status)}; expected one of {', '.join(_STATUSES)}")
    return tuple(choices)


def _trial(
    entry: _Replayed, file: Path, seed: int, known: Mapping[str, Fix], first: RunnerSettings
) -> tuple[Trial, Pairs]:
    """A trial and its records."""
    folder = file.parent / SEARCH_FOLDER
    pairs = [(RunRecord.load(folder / one), RunRecord.load(folder / other)) for one, other in entry.pairs]
    trial = Trial(
        configuration=Configuration(first, _chosen(entry, file, known, first)),
        score=float("inf") if entry.score is None else entry.score,
        comparison=compare_windows(*joined(pairs), seed) if pairs else None,
        **_same(entry, *_OF_TRIAL),
    )
    return trial, pairs
