"""What a search has found so far, on disk after every step, so that an interrupted one can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.errors import InputError
from latfix.record import RunRecord, write_json
from latfix.runners.prediction import Prediction
from latfix.runners.steps import Step, compare_windows

JOURNAL_FILE = "search.json"
JOURNAL_SCHEMA = "latfix.search/1"
#: Where the records of the search lie, beside the journal.
SEARCH_FOLDER = "search"
#: What more time, or more data, may decide otherwise.
_OPEN = ("skipped", "undecided")


@dataclass(slots=True)
class Journal:
    """An optimization's folder as far as it got.

    :param settings: of the baseline; ``traffic_sha256`` of its schedule: both must be the same to go on.
    :param load_s: seconds that loading took, ``accuracy_s`` seconds that measuring the accuracy took.
    :param replays: pairs of windows replayed so far, which numbers their folders.
    :param layers: what measuring the layers told; empty where that was not done.
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
            "replays": self.replays,
            "layers": dict(layers),
            "steps": [_written(step) for step in self.steps],
        }
        write_json(self.folder / JOURNAL_FILE, document)

    @classmethod
    def read(cls, folder: Path) -> Journal:
        """The journal in an optimization's folder, with the steps that are decided.

        :raises InputError: there is none, or it or a record that it names cannot be read.
        """
        file = folder / JOURNAL_FILE
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(
                f"{file}: found no such file; expected the folder of an optimization that got past its baseline; "
                "start anew without --resume"
            ) from error
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: found a file that cannot be read ({error}); start anew") from error
        if not isinstance(document, dict) or document.get("schema") != JOURNAL_SCHEMA:
            raise InputError(f"{file}: found no journal of a search; expected schema {JOURNAL_SCHEMA!r}; start anew")
        try:
            journal = cls(
                folder=folder,
                settings=dict(document["settings"]),
                traffic_sha256=str(document["traffic_sha256"]),
                seed=int(document["seed"]),
                accuracy=float(document["accuracy"]),
                accuracy_kind=str(document["accuracy_kind"]),
                load_s=float(document["load_s"]),
                accuracy_s=float(document["accuracy_s"]),
                replays=int(document["replays"]),
                layers=dict(document["layers"]),
            )
            decided = [entry for entry in document["steps"] if entry["status"] not in _OPEN]
            journal.steps = [_read(entry, folder, journal.seed) for entry in decided]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file}: found an entry that is not a search's ({error!r}); start anew") from error
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


def _read(entry: Mapping[str, Any], folder: Path, seed: int) -> Step:
    found = entry["prediction"]
    prediction = None
    if found is not None:
        compute = found["compute"]
        prediction = Prediction(
            ratio={str(key): float(value) for key, value in found["ratio"].items()},
            compute=None if compute is None else (float(compute[0]), float(compute[1])),
        )
    names = tuple((str(one), str(other)) for one, other in entry["pairs"])
    pairs = [(_record(folder, one), _record(folder, other)) for one, other in names]
    return Step(
        fix=str(entry["fix"]),
        status=str(entry["status"]),
        reason=str(entry["reason"]),
        together=tuple(str(name) for name in entry["together"]),
        settings=dict(entry["settings"]),
        accuracy=None if entry["accuracy"] is None else float(entry["accuracy"]),
        scored=dict(entry["scored"]),
        verified=str(entry["verified"]),
        prediction=prediction,
        comparison=compare_windows(pairs, seed) if pairs else None,
        pairs=names,
    )


def _record(folder: Path, name: str) -> RunRecord:
    return RunRecord.load(folder / SEARCH_FOLDER / name)
