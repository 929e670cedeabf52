"""JUnit XML: one testcase per gate, valid by Jenkins' and Ant's schemas.

An undecided gate is ``skipped``, with its reason: it neither passed nor failed, and the exit code is 3. A gate that
could not be evaluated because the run failed is an ``error``.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from latfix.formatting import LATENCY_KEYS, key_label, significant, visible
from latfix.reports.ci.ci_summary import Summary

_LONGEST = 2000
_TAGS = {"failed": "failure", "undecided": "skipped"}
#: Ant's schema has no type for skipped.
_TYPES = {"failure": "failed", "error": "not judged"}


def junit_xml(summary: Summary, *, started: str, seconds: float, host: str) -> str:
    """The document, with its XML declaration.

    :param started: UTC, ``2026-01-02T03:04:05``: the schema does not allow a time zone.
    :param seconds: total duration.
    :param host: name of the machine; empty for ``localhost``.
    """
    cases = [_case(summary, gate.gate, _TAGS.get(gate.outcome), gate.reason) for gate in summary.gates]
    names = summary.unjudged or (("run",) if summary.failure else ())
    why = summary.failure or "the run did not finish"
    errors = [_case(summary, name, "error", why) for name in names]
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": f"latfix {summary.command}",
            "package": _token(summary.workload),
            "id": "0",
            "hostname": _token(host) if host.strip() else "localhost",
            "timestamp": started,
            "tests": str(len(cases) + len(errors)),
            "failures": str(summary.count("failed")),
            "errors": str(len(errors)),
            "skipped": str(summary.count("undecided")),
            "time": f"{max(seconds, 0.0):.3f}",
        },
    )
    suite.append(_properties(summary))
    suite.extend([*cases, *errors])
    ElementTree.SubElement(suite, "system-out").text = visible(summary.sentence, limit=_LONGEST)
    lines = () if summary.answer is None else summary.answer.labeled()
    reasons = [line.words for line in lines if line.label in ("disturbed", "why")]
    ElementTree.SubElement(suite, "system-err").text = visible("; ".join([*reasons, *summary.notes]), limit=_LONGEST)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(summary: Summary, name: str, tag: str | None, why: str) -> ElementTree.Element:
    attributes = {"name": _token(name), "classname": f"latfix.{_token(summary.workload)}", "time": "0"}
    case = ElementTree.Element("testcase", attributes)
    if tag is not None:
        reason, kind = visible(why, limit=_LONGEST), {"type": _TYPES[tag]} if tag in _TYPES else {}
        ElementTree.SubElement(case, tag, {**kind, "message": reason}).text = reason
    return case


def _properties(summary: Summary) -> ElementTree.Element:
    element = ElementTree.Element("properties")
    pairs = [("workload", summary.workload), ("device", summary.device), ("verdict", summary.verdict)]
    arms = [("", summary.run)] if summary.change is None else [("before ", summary.change.before)]
    if summary.change is not None:
        arms.append(("after ", summary.change.after))
    for prefix, arm in arms:
        for key in LATENCY_KEYS:
            if arm is not None and arm.latency_ms.get(key) is not None:
                pairs.append((f"{prefix}{key_label(key)} ms", significant(arm.latency_ms[key]).replace(",", "")))
    for name, value in pairs:
        if not value:
            continue
        ElementTree.SubElement(element, "property", {"name": name, "value": visible(value, limit=_LONGEST)})
    return element


def _token(text: str) -> str:
    """The text as a name: printable, with blanks normalized."""
    return re.sub(r"\s+", " ", visible(text, limit=200)).strip() or "unnamed"
