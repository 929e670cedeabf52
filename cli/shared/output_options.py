"""Outputs of a command: files that may be written, JSON, JUnit XML, Markdown, annotations.

A bad path fails before anything is replayed. A run that fails or is interrupted still writes JUnit XML and Markdown,
with the reason.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfix.cli.shared.options import JsonOption
from latfix.errors import InputError, LatfixError
from latfix.files.atomic_write import is_device, write_json, write_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from latfix.files.json_documents import Document
    from latfix.gates.evaluate import GateResult
    from latfix.reports.ci.ci_summary import Summary

#: Variable with the file whose Markdown GitHub shows on the run's page.
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """More outputs."""

    json_file: JsonOption = None
    junit: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Write the gates as JUnit XML, one testcase each.")
    ] = None
    markdown: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", help="Write a summary for a pull request; - for standard output."),
    ] = None
    annotations: Annotated[
        bool,
        typer.Option("--annotations", help="Annotate a GitHub Actions run, and add the summary to its page."),
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every figure, cause and fix on the terminal.")
    ] = False


@dataclass(slots=True)
class Outputs:
    """All outputs of a command.

    :param command: its name: ``diagnose``.
    :param started: start of the command, UTC.
    """

    command: str
    json: Destination
    junit: Destination
    markdown: Destination
    step_summary: Destination
    annotations: bool = False
    verbose: bool = False
    started: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    _written: bool = False

    @classmethod
    def open(cls, command: str, given: OutputOptions) -> Outputs:
        """Check that every target can be written.

        :raises InputError: one cannot, or two are the same.
        """
        check_distinct({"--json": given.json_file, "--junit": given.junit, "--markdown": given.markdown})
        page = (os.environ.get(STEP_SUMMARY) or None) if given.annotations else None
        return cls(
            command=command,
            json=Destination.open("--json", given.json_file),
            junit=Destination.open("--junit", given.junit),
            markdown=Destination.open("--markdown", given.markdown),
            step_summary=Destination.open(f"--annotations: {STEP_SUMMARY}", page, append=True),
            annotations=given.annotations,
            verbose=given.verbose,
        )

    @property
    def to_stdout(self) -> bool:
        """True if standard output carries a document, and so must carry nothing else."""
        return self.json.to_stdout or "-" in (self.junit.where, self.markdown.where)

    def console(self) -> Console:
        """The console for text: standard output, or standard error if that carries a document."""
        from rich.console import Console

        return Console(file=sys.stderr if self.to_stdout else sys.stdout)

    def show(self, render: Callable[[], RenderableType], gates: Sequence[GateResult] = ()) -> None:
        """Show the result; if standard output carries a document, only a line per gate on standard error."""
        from rich.text import Text

        if not self.to_stdout:
            self.console().print(render())
            return
        styles = {True: ("passed", "green"), False: ("FAILED", "bold red"), None: ("UNDECIDED", "yellow")}
        for one in gates:
            name = (f"{one.gate.text}  ", "bold")
            self.console().print(Text.assemble("gate ", name, styles[one.passed], f"  {one.reason}"))

    def write(
        self,
        document: Mapping[str, Any],
        *,
        extra: Mapping[str, Any] | None = None,
        workload: str = "",
        failure: str = "",
        interrupted: bool = False,
        typed: str | None = None,
        plan: str = "",
    ) -> None:
        """Write the document and the outputs for CI.

        :param extra: further fields for the CI outputs.
        :param workload: its name if the document has none.
        :param failure: why the result is not reliable; empty if it is.
        :param typed: the workload as the user types it; ``plan`` the path of its plan.
        """
        self.json.write_json(document)
        if self._for_ci():
            from latfix.reports.ci.ci_summary import read_summary

            why = failure or (_INTERRUPTED if interrupted else "")
            whole = {**document, **(extra or {})}
            names = {"workload": workload, "plan": plan}
            self._report(read_summary(whole, command=self.command, failure=why, typed=typed, **names))

    @contextlib.contextmanager
    def in_any_case(self, workload: str, gates: Sequence[str]) -> Iterator[None]:
        """Write the CI outputs even if the block fails before :meth:`write`."""
        try:
            yield
        except LatfixError as error:
            self._fail(workload, gates, error.message)
            raise
        except KeyboardInterrupt:
            self._fail(workload, gates, _INTERRUPTED)
            raise

    def _fail(self, workload: str, gates: Sequence[str], why: str) -> None:
        if self._for_ci() and not self._written:
            from latfix.reports.ci.ci_summary import Summary

            self._report(Summary(command=self.command, workload=workload, failure=why, unjudged=tuple(gates)))

    def _for_ci(self) -> bool:
        return self.annotations or self.junit.where is not None or self.markdown.where is not None

    def _report(self, summary: Summary) -> None:
        self._written = True
        if self.junit.where is not None:
            self.junit.write(self._junit(summary))
        if self.markdown.where is not None or self.step_summary.where is not None:
            from latfix.reports.ci.markdown import GITHUB_BYTES, markdown

            text = markdown(summary)
            self.markdown.write(text)
            if len(text.encode()) <= GITHUB_BYTES:
                self.step_summary.write(f"{text}\n")
        if self.annotations:
            from latfix.reports.ci.github_annotations import annotation_lines

            # GitHub reads annotations from both streams.
            stream = sys.stderr if self.to_stdout else sys.stdout
            stream.write("".join(f"{line}\n" for line in annotation_lines(summary)))

    def _junit(self, summary: Summary) -> str:
        import platform

        from latfix.reports.ci.junit import junit_xml

        seconds = (datetime.datetime.now(datetime.UTC) - self.started).total_seconds()
        stamp = self.started.strftime("%Y-%m-%dT%H:%M:%S")
        return junit_xml(summary, started=stamp, seconds=seconds, host=platform.node())


_INTERRUPTED = "interrupted: the recorded part is kept"


def check_distinct(named: Mapping[str, str | None]) -> None:
    """Check that outputs do not overwrite each other.

    :param named: destinations by option.
    :raises InputError: two are the same.
    """
    seen: dict[str, str] = {}
    for option, where in named.items():
        if where is None:
            continue
        path = os.path.realpath(where) if where != "-" else where  # Path.resolve() raises for a loop of links
        if path in seen and where != os.devnull:
            what = "standard output" if where == "-" else where
            raise InputError(f"{option}: found {what}, which {seen[path]} also writes to; expected another file")
        seen[path] = option


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of an output: a file, standard output, or nowhere. A bad path fails before anything runs.

    :param option: the option that set it, for messages.
    :param append: append to an existing file.
    """

    option: str
    where: str | None
    append: bool = False

    @classmethod
    def open(cls, option: str, where: str | None, *, append: bool = False) -> Destination:
        """Check that the target can be written.

        :raises InputError: it cannot.
        """
        if where is not None and where != "-":
            check_writable(option, where)
        return cls(option, where, append)

    @property
    def to_stdout(self) -> bool:
        """True if the output goes to standard output, which must then carry nothing else."""
        return self.where == "-"

    def write(self, text: str) -> None:
        """Write the text; a file is replaced whole or not at all."""
        if self.where is None:
            return
        if self.to_stdout:
            sys.stdout.write(text)
            return
        try:
            if self.append:
                with Path(self.where).open("a", encoding="utf-8") as file:
                    file.write(text)
            else:
                write_text(Path(self.where), text)
        except OSError as error:
            raise _refusal(self.option, self.where, error) from error

    def write_json(self, document: Mapping[str, Any]) -> None:
        """Write the document."""
        if self.where is not None:
            self.write(json.dumps(document, indent=2, allow_nan=False) + "\n")

    def report(self, found: Document, render: Callable[[], RenderableType], *, keep: Path | None = None) -> None:
        """Write the result as JSON, also to ``keep``, and show it unless standard output carries the document."""
        from rich.console import Console

        document = found.to_json()
        if keep is not None:
            write_json(keep, document)
        self.write_json(document)
        if not self.to_stdout:
            Console().print(render())


def check_writable(option: str, where: str) -> None:
    """Check that a file can be written, without changing it.

    :raises InputError: it cannot be written, or holds recorded data (a history, traffic, a run).
    """
    path = Path(where)
    try:
        if not is_device(path):
            existed = path.exists()
            with path.open("ab"):
                pass
            if not existed:
                Path(os.path.realpath(path)).unlink()  # of a link, the file that it names
            elif os.access(path, os.R_OK) and (found := _recorded_in(path)):
                raise InputError(f"{option}: found {found} in {where}, which it would replace; name another file")
    except OSError as error:
        raise _refusal(option, where, error) from error


#: Suffixes of input files, which must not be overwritten.
_READ = (".toml", ".py", ".jsonl", ".csv", ".parquet", ".gz", ".pt", ".pth", ".pt2", ".onnx", ".engine")
_LONGEST_LINE = 1 << 20
#: First bytes of files with data that cannot be regenerated.
_SIGNATURES = {b"SQLite format 3\0": "a database", b"PAR1": "recorded rows", b"\x1f\x8b": "compressed rows"}
_OF_A_RUN = re.compile(rb'"schema"\s*:\s*"latfix\.(?:run|search)/')


def _recorded_in(path: Path) -> str:
    """The kind of recorded data in a file; empty for a report or an empty file."""
    with path.open("rb") as file:
        first = file.readline(_LONGEST_LINE)
        begin = first + file.read(4096)
    if not begin.strip():
        return ""
    for signature, words in _SIGNATURES.items():
        if begin.startswith(signature):
            return words
    if path.suffix.lower() in _READ:
        return f"a {path.suffix} file"
    if _OF_A_RUN.search(begin):
        return "a run's own record"
    try:  # the first line of latfix's own documents is a single brace
        alone = isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        alone = False
    several = len(begin) > len(first)
    return "lines of JSON, as traffic is recorded" if alone and (several or b'"arrival_s"' in first) else ""


def _refusal(option: str, where: str, error: OSError) -> InputError:
    return InputError(f"{option}: cannot write {where} ({error.strerror}); name another file")
