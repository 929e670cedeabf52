"""How a report's figures came about: the replay's own lag, what latfix cost, the machine, the definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from latfix.formatting import NONE, count, milliseconds, share, significant
from latfix.reports.elements import Content, Html, element, section
from latfix.reports.escaping import visible
from latfix.reports.vocabulary import CLASS_WORDS, DEFINITIONS
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord

_MOST_ROWS = 150
_DEEPEST = 4


def description_list(pairs: Sequence[tuple[Content, Content]]) -> Html:
    """Terms with their descriptions."""
    cells: list[Html] = []
    for term, words in pairs:
        cells += [element("dt", term), element("dd", words)]
    return element("dl", *cells, class_="words")


def method_section(record: RunRecord, diagnosis: Diagnosis) -> Html:
    """Dispatch lag, the cost of latfix itself, and the machine that it ran on."""
    lag = ", ".join(f"{key} {milliseconds(diagnosis.dispatch_ms.get(key))}" for key in ("p50", "p99", "max"))
    verdict = (
        "small enough for the percentiles to mean what they say"
        if diagnosis.trustworthy
        else "too large: the percentiles of this run are not to be trusted"
    )
    cost = diagnosis.overhead
    micros = significant(cost.get("per_request_us"))
    pairs: list[tuple[Content, Content]] = [
        ("Replay lag", f"{lag} behind the schedule: {verdict}."),
        ("Cost of latfix", f"{micros} µs a request, {share(cost.get('core_share'))} of a core."),
        ("Requests", requests_words(record)),
        ("Ledger", f"largest gap between a request's excess and its entries: {ledger_gap(diagnosis)}."),
    ]
    return section("method", "How it was measured", description_list(pairs), machine_details(record))


def requests_words(record: RunRecord) -> str:
    """How many requests were scheduled, recorded, warm-up, and lost to a run that did not end."""
    counts = ", ".join(f"{count(number)} {name}" for name, number in record.counts().items())
    warm = int((~record.measured).sum())
    lost = record.unrecorded()
    words = f"{counts}; {count(warm)} warm-up requests left out"
    return f"{words}; {count(lost)} scheduled but not recorded." if lost > 0 else f"{words}."


def ledger_gap(diagnosis: Diagnosis) -> str:
    """The conservation error of the ledger, which is zero unless latfix has a bug."""
    return f"{count(diagnosis.ledger.conservation_error_ns())} ns"


def machine_details(record: RunRecord, *, title: str = "Machine, versions and settings") -> Html:
    """Everything that ``run.json`` says, folded."""
    pairs = list(flattened(record.meta))
    rows: list[tuple[Content, Content]] = [(element("code", key), value) for key, value in pairs[:_MOST_ROWS]]
    if len(pairs) > _MOST_ROWS:
        rows.append((f"{len(pairs) - _MOST_ROWS} more", "in run.json"))
    return element("details", element("summary", title), description_list(rows))


def flattened(value: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Nested values of a document as dotted keys and short texts."""
    for key, entry in value.items():
        name = f"{prefix}{key}"
        if isinstance(entry, Mapping) and entry and depth < _DEEPEST:
            yield from flattened(entry, f"{name}.", depth + 1)
        else:
            yield name, _words(entry)


def _words(value: object) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return visible(", ".join(visible(part, limit=80) for part in value[:30]), limit=600)
    return visible(value, limit=600)


def definitions_section() -> Html:
    """What each figure on the page means."""
    classes: list[tuple[Content, Content]] = [
        (f"Known by: {name}", f"{words}.") for name, words in CLASS_WORDS.items()
    ]
    pairs: list[tuple[Content, Content]] = [*DEFINITIONS, *classes]
    return section("definitions", "What the figures mean", description_list(pairs))
