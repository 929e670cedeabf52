"""Words for the ids in documents, and definitions of the figures in reports."""

from __future__ import annotations

from typing import Literal

from latfix.cause_catalogue import CATALOGUE
from latfix.formatting import visible
from latfix.results.diagnosis import Diagnosis

Severity = Literal["good", "warn", "bad", "calm"]


CLASS_WORDS: dict[str, str] = {
    "measured": "timestamps or counters around the event itself",
    "counted": "number of events × their cost, calibrated on this machine",
    "modelled": "predicted by a model fitted to this run",
    "propagated": "waiting behind requests that were slow for this cause",
    "remainder": "what remains after all known causes are subtracted",
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
        "End of the finish stage minus the scheduled arrival, so that a late load generator cannot hide a wait "
        "(coordinated omission). Warm-up requests are excluded.",
    ),
    (
        "Percentiles",
        "Over all requests that arrived. A request that failed, timed out, was shed or was in flight when the run "
        "ended counts as slower than the time it had waited. A percentile that falls among such requests is shown as "
        "a lower bound (> 41.2) or as lost. The mean, stages and causes cover only requests that ended ok.",
    ),
    (
        "95 % interval",
        "Moving-block bootstrap over the run, so that requests of one burst do not count as independent.",
    ),
    (
        "Quiet request, reference",
        "A typical request of this run with nothing delaying it. Its latency is the reference above which the "
        "tail's excess is counted.",
    ),
    (
        "Tail and excess",
        "The tail is every request at or above the stated percentile. The excess is the mean latency of the tail "
        "minus the reference.",
    ),
    (
        "Own, through the queue",
        "Own milliseconds arose in the slow request itself. Milliseconds through the queue arose in a request ahead "
        "of it, and delayed it because it had to wait.",
    ),
    (
        "Unexplained",
        "The excess minus all causes, so that causes and unexplained sum exactly to the excess. It is never clipped "
        "and may be negative.",
    ),
    (
        "Named cause",
        "A cause whose 95 % interval lies above the naming threshold: the largest of 0.1 ms, 1 % of p50 and 5 % of "
        "the excess; higher for causes that every machine shows to some degree.",
    ),
    (
        "Stages",
        "dispatch (latfix's own lag), prepare, queue, batch, h2d (copy to the device), compute, d2h (copy back), "
        "finish. Each starts where the previous one ended, so the stages of a request sum to its latency.",
    ),
    ("Ratio", "After divided by before, from alternating replays of the same traffic; below 1 is faster."),
)


#: Definitions of columns, by title without its unit.
_DEFINED = {
    "tail": "Tail and excess",
    "of the tail": "Tail and excess",
    "excess of the tail": "Tail and excess",
    "quiet": "Quiet request, reference",
    "own": "Own, through the queue",
    "queue": "Own, through the queue",
    "through the queue": "Own, through the queue",
    "95 % interval": "95 % interval",
    "ratio": "Ratio",
    "stage": "Stages",
}
_COLUMNS = {
    "excess": "How much longer this work took than is typical of its kind.",
    "typical": "How long such work usually takes in this run.",
    "known by": "; ".join(f"{name}: {words}" for name, words in CLASS_WORDS.items()) + ".",
}


def term_words(title: str) -> str:
    """What a column or figure means; empty if its title says it."""
    name = title.partition(",")[0]
    return _COLUMNS.get(name) or dict(DEFINITIONS).get(_DEFINED.get(name, ""), "")


CLASS_DEFINITIONS: tuple[tuple[str, str], ...] = tuple(
    (f"Known by: {name}", f"{words}.") for name, words in CLASS_WORDS.items()
)

#: The definition of the knee is in the sweep's document.
SWEEP_DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "Load",
        "A multiple of the recorded rate. Every load replays the same requests in the same order with time stretched "
        "or compressed, so that bursts stay bursts; at high loads they are repeated. Requests are sent on schedule, "
        "whether or not earlier ones have returned.",
    ),
    (
        "Largest load",
        "The load at which the percentile reaches the limit, with its 95 % interval: loads below the interval meet "
        "the objective, loads above it miss it. Some loads are replayed, the others simulated from these replays, "
        "with the measured errors of the simulation included. Lost requests (errors, timeouts, shed) count as slower "
        "than all others. The status is found if the interval is within 15 % of the value, otherwise undecided.",
    ),
    ("Knee", ""),
    (
        "Saturated",
        "The backlog keeps growing: its minimum rose in the second half of the replay, and at the last arrival a "
        "tenth of all requests were still in the service. Such a load does not meet the objective. Most such replays "
        "are stopped early; the percentile is then a lower bound.",
    ),
    ("Wait", "Time before prepare and in the queue, until the request's batch is closed."),
    (
        "M/M/1, M/G/1, Kingman",
        "The same simulation with independent arrivals and the service times measured at low load (M/G/1); its waits "
        "are scaled for exponential service times (M/M/1), or for arrivals as bursty as recorded (Kingman).",
    ),
    (
        "Queue replay",
        "A request-by-request simulation of the recorded arrivals at this load, with the service times measured at "
        'low load. "Own service" uses the service times measured at this load instead: what it still misses is not '
        "due to service times.",
    ),
)


#: Explanation of the table of source lines.
LINES_WORDS = (
    "slow: mean over the slowest 5 % of that work; typical: mean over its faster half. Stacks are sampled every "
    "20 ms; time in C code that holds the interpreter lock appears on the line after the call."
)


#: What to do about a cause in a system that latfix does not run, by its id or by the kind of part that it names.
_ACTIONS: dict[str, str] = {
    "traffic.burst": "Serve more at once, make requests cheaper, or refuse what would wait too long.",
    "traffic.overload": "Add capacity, or refuse requests that would wait too long: the backlog grows without end.",
    "batching.window": "Shorten the time for which a batch waits for more requests.",
    "batching.size": "Make batches smaller, or of requests of like size.",
    "batching.prefill": "Compute prompts in smaller chunks, so that open streams wait for less of them.",
    "input.size": "Limit the size of inputs, or serve large ones apart from small ones.",
    "stall.shared": "See what ran at those times: garbage collection, a deployment, a backup, another job.",
    "drift.unknown": "See what grows with the service's age (memory, caches, sessions), and if a restart helps.",
    "client.late": "Use more or faster load generators: the service did not get these requests in time.",
    "client.queue": "Give the client more connections, or limit what it sends at once.",
    "network.transfer": "Look at the size of requests and answers, and at the link to the client.",
    "network.connect": "Keep connections alive.",
    "service.first_byte": "Record the service itself (its log, its spans, or latfix.record), and diagnose that.",
    "dependency.client": "Look at slow clients and their links; let the proxy buffer requests and answers.",
    "dependency.retry": "Find out why the first server failed, and let the proxy give up sooner on one.",
    "gpu.slowdown": "Check the device's clocks and temperature, and who else uses it.",
    "gpu.rank_wait": "Look at the slowest rank: the others wait for it.",
    "service": "Look inside {name}: record its own requests with latfix.record, and diagnose that recording.",
    "network": "Look between {name} and its callers: new connections, retries, and queues in front of it.",
    "dependency": "Give calls of {name} a deadline and kept connections, and find out why it is slower then.",
}


def cause_action(cause: str) -> str:
    """What to do about a cause in a recorded system; empty if only latfix's fixes treat it, or nothing is known."""
    kind, _, name = cause.partition(".")
    words = _ACTIONS.get(cause) or ("" if cause in CATALOGUE else _ACTIONS.get(kind, ""))
    return words.format(name=name)


def cause_words(cause: str) -> str:
    """What a cause means; empty for an id that this version does not know."""
    return CATALOGUE[cause].title if cause in CATALOGUE else ""


def diagnosis_severity(diagnosis: Diagnosis) -> Severity:
    """The color of a diagnosis: bad for a named cause, good for steady, a warning if undecided.

    A run in which no request ended ok is bad if requests failed, and a warning if there were none.
    """
    if not diagnosis.requests.get("ok"):
        return "bad" if any(diagnosis.requests.values()) else "warn"
    if diagnosis.verdict == "inconclusive" or not diagnosis.trustworthy:
        return "warn"
    return "good" if diagnosis.verdict == "steady" else "bad"


def change_severity(verdict: str) -> Severity:
    """The color of the verdict of a comparison or an optimization."""
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
