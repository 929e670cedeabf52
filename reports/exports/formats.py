"""The formats of ``latfix export``, by name: the input of each, and its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from latfix.files.json_documents import Document
from latfix.reports.ci.ci_summary import Summary, read_summary
from latfix.reports.ci.github_annotations import annotation_lines
from latfix.reports.ci.gitlab_code_quality import code_quality
from latfix.reports.ci.markdown import markdown, plain_markdown
from latfix.reports.exports.chrome_trace import chrome_trace
from latfix.reports.exports.hdr_log import hdr_log
from latfix.reports.exports.openmetrics import openmetrics
from latfix.reports.exports.otlp_spans import otlp_lines
from latfix.reports.exports.request_tables import csv_pieces, write_parquet
from latfix.reports.exports.speedscope import speedscope
from latfix.results.comparison import Comparison
from latfix.results.diagnosis import Diagnosis, StackTime
from latfix.results.optimization import Optimization
from latfix.run_record.chunked_record import RecordSource

#: The command of each result that has a CI summary.
COMMANDS: Mapping[type[Document], str] = {Diagnosis: "diagnose", Optimization: "optimize", Comparison: "compare"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is exported: a run's record, a result, or both.

    :param path: of the workload file within its repository, to attach findings to.
    :param stacks: time in sampled stacks, of slow and of typical work.
    """

    record: RecordSource | None
    result: Document | None
    path: str = "workload.toml"
    stacks: Sequence[StackTime] = ()

    @property
    def requests(self) -> RecordSource:
        """The record; only for formats that need one."""
        assert self.record is not None
        return self.record

    @property
    def summary(self) -> Summary:
        """The result as a CI summary."""
        assert self.result is not None
        return read_summary(self.result.to_json(), command=COMMANDS[type(self.result)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format.

    :param file: default file name.
    :param pieces: its text; ``None`` for a binary format, which ``write`` writes.
    :param needs: types of results that it is made from; empty for formats of requests.
    """

    file: str
    pieces: Callable[[Subject], Iterable[str]] | None = None
    write: Callable[[Subject, BinaryIO], None] | None = None
    needs: tuple[type[Document], ...] = ()

    def write_to(self, subject: Subject, file: BinaryIO) -> None:
        """Write the file, text as UTF-8."""
        if self.write is not None:
            self.write(subject, file)
        for piece in self.pieces(subject) if self.pieces is not None else ():
            file.write(piece.encode())


def _metrics(subject: Subject) -> Iterator[str]:
    assert isinstance(subject.result, Diagnosis)
    return openmetrics(subject.result, subject.record)


_ANY = tuple(COMMANDS)
FORMATS: Mapping[str, Format] = {
    "perfetto": Format(file="trace.json", pieces=lambda subject: chrome_trace(subject.requests)),
    "otlp": Format(file="spans.otlp.jsonl", pieces=lambda subject: otlp_lines(subject.requests)),
    "openmetrics": Format(file="metrics.txt", pieces=_metrics, needs=(Diagnosis,)),
    "hdr": Format(file="latency.hlog", pieces=lambda subject: hdr_log(subject.requests)),
    "speedscope": Format(file="speedscope.json", pieces=lambda subject: speedscope(subject.requests, subject.stacks)),
    "csv": Format(file="requests.csv", pieces=lambda subject: csv_pieces(subject.requests)),
    "parquet": Format(file="rows.parquet", write=lambda subject, file: write_parquet(subject.requests, file)),
    "markdown": Format(file="summary.md", pieces=lambda subject: [markdown(subject.summary)], needs=_ANY),
    "plain": Format(file="summary.txt", pieces=lambda subject: [plain_markdown(subject.summary)], needs=_ANY),
    "github": Format(
        file="annotations.txt",
        pieces=lambda subject: (f"{line}\n" for line in annotation_lines(subject.summary)),
        needs=_ANY,
    ),
    "gitlab": Format(
        file="gl-code-quality-report.json",
        pieces=lambda subject: [code_quality(subject.summary, path=subject.path)],
        needs=_ANY,
    ),
}
#: Other names of the formats.
ALIASES: Mapping[str, str] = {
    "chrome": "perfetto",
    "trace": "perfetto",
    "opentelemetry": "otlp",
    "prometheus": "openmetrics",
    "hdrhistogram": "hdr",
    "markdown-plain": "plain",
    "github-annotations": "github",
    "code-quality": "gitlab",
}
