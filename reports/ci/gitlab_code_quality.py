"""GitLab's code quality report: the gates that did not pass, as shown in a merge request.

Format: https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format.
"""

from __future__ import annotations

import hashlib
import json

from latfix.formatting import visible
from latfix.reports.ci.ci_summary import Summary

_LONGEST = 1000


def code_quality(summary: Summary, *, path: str) -> str:
    """The document: ``blocker`` for a failed run, ``major`` for a failed gate, ``minor`` for an undecided one.

    :param path: the file to attach findings to, relative to the repository's root.
    """
    found = {"latfix": ("blocker", summary.failure)} if summary.failure else {}
    for outcome, gate in summary.findings():  # a gate that is given twice has one outcome, and one fingerprint
        severity = "major" if outcome == "failed" else "minor"
        found[gate.gate] = (severity, f"gate {gate.gate} {outcome}: {gate.reason}")
    entries = [
        {
            "description": visible(words, limit=_LONGEST),
            "check_name": visible(name, limit=200),
            "fingerprint": _fingerprint(summary, name),
            "severity": severity,
            "location": {"path": visible(path, limit=_LONGEST), "lines": {"begin": 1}},
        }
        for name, (severity, words) in found.items()
    ]
    return json.dumps(entries, indent=2) + "\n"


def _fingerprint(summary: Summary, name: str) -> str:
    """Stable for a gate of a workload, so that GitLab recognizes new findings."""
    known = "\0".join((summary.command, summary.workload, name))
    return hashlib.sha256(known.encode(errors="surrogatepass")).hexdigest()
