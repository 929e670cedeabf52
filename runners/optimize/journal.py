"""What a search has found so far, on disk after every step, so that an interrupted one can go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.config.settings_tables import validate_settings
from latfix.errors import InputError
from latfix.files.atomic_write import write_json
from latfix.files.strict_json import read_json
from latfix.files.toml_reader import TomlFile
from latfix.formatting import shown
from latfix.results.optimization import Prediction
from latfix.results.optimization_step import Step
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import Fix
from latfix.runners.optimize.fix_prediction import KEYS
from latfix.runners.optimize.screening_decision import compare_windows

JOURNAL_FILE = "search.json"
JOURNAL_SCHEMA = "latfix.search/1"
#: Where the records of the search lie, beside the journal.
SEARCH_FOLDER = "search"
#: What more time, or more data, may decide otherwise.
_OPEN = ("skipped", "undecided")
_DECIDED = ("kept", "rejected", "no_gain", "not_effective")
#: No measured time is longer: some 30 years.
_MOST_S = 1e9
_ANEW = "this search cannot be gone on with: start anew without --resume, in another folder"


@dataclass(slots=True)
class Journal:
    """An optimization's folder as far as it got.

    :param settings: of the baseline; ``traffic_sha256`` of its schedule: both must be the same to go on.
    :param load_s: seconds that loading took, ``accuracy_s`` seconds that measuring the accuracy took.
    :param replays: pairs of windows replayed so far, which numbers their folders.
    :param layers: what measuring the layers told; empty where that was not done.
    :param answers: what the baseline's answers showed (:class:`latfix.results.answer_check.AnswerCheck`).
    """

    folder: Path
    settings: Mapping[str, Any]
    traffic_sha256: str
    seed: int
    accuracy: float
    accuracy_kind: str
    load_s: float
    accuracy_s: float
    replays: int = 0
    steps: list[Step] = field(default_factory=list)
    layers: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)

    def write(self, steps: Sequence[Step], replays: int, layers: Mapping[str, Any]) -> None:
        """Write everything anew; a reader sees the old file or the whole new one."""
        self.steps, self.replays, self.layers = list(steps), replays, layers
        document = {
            "schema": JOURNAL_SCHEMA,
            "settings": dict(self.settings),
            "traffic_sha256": self.traffic_sha256,
            "seed": self.seed,
            "accuracy": self.accuracy,
            "accuracy_kind": self.accuracy_kind,
            "load_s": self.load_s,
            "accuracy_s": self.accuracy_s,
            "answers": dict(self.answers),
            "replays": self.replays,
            "layers": dict(layers),
            "steps": [_written(step) for step in self.steps],
        }
        write_json(self.folder / JOURNAL_FILE, document)

    @classmethod
    def read(cls, folder: Path, known: Mapping[str, Fix]) -> Journal:
        """The journal in an optimization's folder, with the steps that are decided.

        :param known: the fixes that there are, by id.
        :raises InputError: there is none, it or a record that it names cannot be read, or it holds what this latfix
            does not know: another version's, or an edited one.
        """
        file = folder / JOURNAL_FILE
        try:
            document = read_json(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(
                f"{file}: found no such file; expected the folder of an optimization that got past its baseline; "
                "start anew without --resume"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{file}: found a file that cannot be read ({error}); {_ANEW}") from error
        if not isinstance(document, dict) or document.get("schema") != JOURNAL_SCHEMA:
            raise InputError(f"{file}: found no journal of a search; expected schema {JOURNAL_SCHEMA!r}; {_ANEW}")
        try:
            journal = cls(
                folder=folder,
                settings=dict(document["settings"]),
                traffic_sha256=str(document["traffic_sha256"]),
                seed=_whole(document["seed"]),
                accuracy=_number(document["accuracy"]),
                accuracy_kind=str(document["accuracy_kind"]),
                load_s=_seconds(document["load_s"]),
                accuracy_s=_seconds(document["accuracy_s"]),
                replays=_whole(document["replays"]),
                layers=_layers(document["layers"]),
                answers=dict(document.get("answers", {})),
            )
            decided = [entry for entry in document["steps"] if entry["status"] not in _OPEN]
            journal.steps = [_read(entry, file, journal.seed, known) for entry in decided]
        except InputError as error:  # a step's settings, its fix, or a record
            raise InputError(f"{error.message}; {_ANEW}") from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = " ".join(repr(error).split())[:120]
            raise InputError(f"{file}: found an entry that is not a search's ({reason}); {_ANEW}") from error
        return journal

    def check(self, settings: Mapping[str, Any], traffic_sha256: str, seed: int) -> None:
        """Refuse to go on with something else.

        :raises InputError: workload settings, traffic or seed are not those of the journal.
        """
        file = self.folder / JOURNAL_FILE
        if traffic_sha256 != self.traffic_sha256:
            raise InputError(f"{file}: found another traffic than this command's; pass the same options as before")
        if seed != self.seed:
            raise InputError(f"{file}: found seed {self.seed}; expected {seed}; pass --seed {self.seed}")
        for name, value in settings.items():
            if self.settings.get(name) != value:
                was = self.settings.get(name)
                raise InputError(f"{file}: found {name} = {was!r} in its baseline; expected {value!r} as it is now")


def _written(step: Step) -> dict[str, Any]:
    return {
        "fix": step.fix,
        "status": step.status,
        "reason": step.reason,
        "together": list(step.together),
        "settings": step.settings,
        "accuracy": step.accuracy,
        "scored": dict(step.scored),
        "verified": step.verified,
        "prediction": None if step.prediction is None else step.prediction.to_json(),
        "pairs": [list(pair) for pair in step.pairs],
    }


def _read(entry: Mapping[str, Any], file: Path, seed: int, known: Mapping[str, Fix]) -> Step:
    names = tuple((str(one), str(other)) for one, other in entry["pairs"])
    pairs = [(_record(file.parent, one), _record(file.parent, other)) for one, other in names]
    return _fix(entry["fix"], file, known).step(
        _status(entry["status"]),
        str(entry["reason"]),
        together=tuple(str(name) for name in entry["together"]),
        settings=validate_settings(entry["settings"], TomlFile(file), "settings"),
        accuracy=None if entry["accuracy"] is None else _number(entry["accuracy"]),
        scored=dict(entry["scored"]),
        verified=str(entry["verified"]),
        prediction=_prediction(entry["prediction"]),
        comparison=compare_windows(pairs, seed) if pairs else None,
        pairs=names,
    )


def _fix(name: object, file: Path, known: Mapping[str, Fix]) -> Fix:
    if not isinstance(name, str) or name not in known:
        found = f"fix {shown(name)}, which this version of latfix does not know"
        raise InputError(f"{file}: found {found}; expected one of its fixes")
    return known[name]


def _status(status: object) -> str:
    if status not in _DECIDED:
        raise ValueError(f"status {shown(status)}")
    return str(status)


def _prediction(found: Any) -> Prediction | None:
    if found is None:
        return None
    ratio = {str(key): _number(value) for key, value in found["ratio"].items()}
    if missing := [key for key in KEYS if key not in ratio]:
        raise ValueError(f"a prediction without {missing[0]}")
    compute = found["compute"]
    return Prediction(ratio=ratio, compute=None if compute is None else (_number(compute[0]), _number(compute[1])))


def _layers(found: Any) -> dict[str, Any]:
    layers = dict(found)
    if "keep" in layers:
        layers["keep"] = {str(name): _number(effect) for name, effect in layers["keep"].items()}
    return layers


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{shown(value)} for a whole number, 0 or more")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} for a number")
    return float(value)


def _seconds(value: Any) -> float:
    seconds = _number(value)
    if not 0 <= seconds <= _MOST_S:
        raise ValueError(f"{shown(value)} for seconds")
    return seconds


def _record(folder: Path, name: str) -> RunRecord:
    return RunRecord.load(folder / SEARCH_FOLDER / name)
