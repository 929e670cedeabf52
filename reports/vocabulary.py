"""Plain words for the ids of the contract, and the definition of every figure that a report shows."""

from __future__ import annotations

from typing import Literal

from latfix.cause_catalogue import CATALOGUE
from latfix.formatting import visible
from latfix.results.diagnosis import Diagnosis

Severity = Literal["good", "warn", "bad", "calm"]

CLASS_WORDS: dict[str, str] = {
    "measured": "two timestamps or counters around the event itself",
    "counted": "number of events × a unit cost calibrated on this machine",
    "modelled": "a model fitted on this run predicts it",
    "propagated": "carried through the queue by the requests ahead",
    "remainder": "what is left when every known cause is subtracted",
}

STEP_STATUS: dict[str, tuple[str, Severity]] = {
    "kept": ("kept", "good"),
    "rejected": ("rejected", "bad"),
    "no_gain": ("no gain", "calm"),
    "not_effective": ("not effective", "warn"),
    "undecided": ("undecided", "warn"),
    "skipped": ("skipped", "calm"),
}

DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "Latency",
        "End of the finish stage minus the scheduled arrival, so a late load generator cannot hide a wait "
        "(coordinated omission). Warm-up requests are left out.",
    ),
    (
        "Percentiles",
        "Over all requests that arrived. One that failed, timed out, was shed or was in flight when the run ended is "
        "slower than it had waited: a percentile that falls among these is lost, and shown as more than it is at "
        "least. The mean, the stages and the causes are of the requests that ended ok.",
    ),
    (
        "95 % interval",
        "Moving-block bootstrap over the run, so that neighbors in the same burst are not counted as independent.",
    ),
    ("Reference", "The latency of a quiet, typical request of this run; the tail's excess is counted above it."),
    (
        "Tail and excess",
        "The tail is every request at or above the stated percentile. Its excess is the mean latency of the tail "
        "minus the reference.",
    ),
    (
        "Own, through the queue",
        "Own milliseconds arose in the request's own path. Milliseconds through the queue arose in a request ahead "
        "of it and reached it as waiting time.",
    ),
    (
        "Unexplained",
        "What is left when all causes are subtracted. It may be negative, is never clipped, and causes and "
        "unexplained together sum to the excess exactly.",
    ),
    (
        "Named cause",
        "A cause whose interval stays above the naming threshold: 1 % of p50, a quiet run's own noise and the timer.",
    ),
    (
        "Stages",
        "dispatch (latfix's own lag), prepare, queue, batch, h2d, compute, d2h, finish. Each starts where the last "
        "ended, so the stages of a request sum to its latency.",
    ),
    ("Ratio", "After divided by before on the same traffic, from replays that alternate; below 1 is faster."),
)


#: The knee's rule is in the document of a sweep.
SWEEP_DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "Load",
        "A multiple of the recorded rate. The same requests in the same order are replayed at every load; only time "
        "is stretched, so that bursts stay bursts. Where they would be over in a moment, they come several times. "
        "They are sent when the schedule says so, whether or not earlier ones have come back.",
    ),
    (
        "Largest load",
        "Where the percentile of these requests crosses the limit, with 95 % of where it may do so: loads below the "
        "interval meet the objective, loads above miss it. Some loads are replayed; the others are simulated from "
        "these replays, with the errors that the simulation was seen to make. Lost requests (errors, timeouts, shed) "
        "count as slower than any. It is found where the interval lies within 15 % of it, otherwise undecided.",
    ),
    ("Knee", ""),
    (
        "Saturated",
        "The backlog grew for good: its minimum rose in the second half of the replay, and a tenth of all "
        "requests are inside at the last arrival. Such a load does not meet the objective, however short its replay. "
        "Most are ended early; the percentile is then a lower bound.",
    ),
    ("Wait", "Before prepare and in the queue, until the request's batch is closed."),
    (
        "M/M/1, M/G/1, Kingman",
        "The same simulation with independent arrivals and the service as measured at low load (M/G/1); its waits "
        "scaled for exponential service (M/M/1), or for arrivals as bursty as recorded (Kingman).",
    ),
    (
        "Queue replay",
        "The simulation of the recorded arrivals, request by request, at this load with the service measured at "
        "low load; with own service, with those measured at this very load, so that what it misses is not the "
        "service's.",
    ),
)


#: What the figures of lines are.
LINES_WORDS = (
    "slow: in the slowest twentieth of that work, on average; typical: in its quicker half. Sampled every 20 ms "
    "where Python can be looked at: time in C code that keeps the interpreter lock shows on the line after it."
)


def cause_words(cause: str) -> str:
    """What a cause means, or an empty text for an id this version does not know."""
    return CATALOGUE[cause].title if cause in CATALOGUE else ""


def diagnosis_severity(diagnosis: Diagnosis) -> Severity:
    """How alarming a diagnosis is: a named cause is bad, steady is good, anything undecided is a warning.

    A run without a single request that ended ok is bad where requests failed and undecided where there were none.
    """
    if not diagnosis.requests.get("ok"):
        return "bad" if any(diagnosis.requests.values()) else "warn"
    if diagnosis.verdict == "inconclusive" or not diagnosis.trustworthy:
        return "warn"
    return "good" if diagnosis.verdict == "steady" else "bad"


def change_severity(verdict: str) -> Severity:
    """How to color the verdict of a comparison or an optimization."""
    known: dict[str, Severity] = {
        "improved": "good",
        "better": "good",
        "worse": "bad",
        "no_gain": "calm",
        "no_difference": "calm",
    }
    return known.get(verdict, "warn")


def verdict_words(verdict: str) -> str:
    """The verdict of a comparison or an optimization as words: ``no_difference`` is ``no difference``."""
    return visible(verdict.replace("_", " "), limit=80) or "no verdict"
