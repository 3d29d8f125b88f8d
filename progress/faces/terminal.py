"""Shows a job in a terminal: one view redrawn in place, or one line per epoch where there is no terminal.

What must be true: nothing the user had on the screen is lost. The view goes up by as many rows as it drew itself and
writes over them; it never clears the screen or the scrollback, keeps to the window's size (a line that wrapped or
scrolled away could not be drawn over), and leaves its last state on the screen. Everything shown is from a `Report`.

    demo  shop.orders → /lake/orders                                              epoch 41
    snapshot   ██████████████████████████████████████▒▒░░░░░░░░░░░░░░░░░░░░░░  61.20 %
    rows       183,600 of about 300,000 rows in 45 of 74 ranges, 12,000 more in progress
    speed      12,000 rows/s, 10 s left
    log        1.2 s behind, 4.1 MB to read, 31.4 MB buffered
    lake       2.4 s old, 42 files, 1.3 % gone, 12.0 MB to fold, 3.1 bytes written per byte changed
    workers    2: 0-31 | 32-63
    vnodes     · 10 pending   ▒ 24 snapshot   ▓ 2 catch-up   █ 28 live
               ▒▒▒▒····████▒▒▒▒▒▒▒▓▓███████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒······

The lighter part of the bar is what the epoch in progress has read and no commit holds yet. A kill would lose it, so it
does not count. A stream whose encoding lacks these characters gets ASCII ones. Colour is left out if NO_COLOR is set.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from progress.faces.definition_lines import definition_facts, definition_work
from progress.faces.figures import duration, size_text
from progress.faces.reporters import NullReporter, Reporter
from progress.faces.terminal_tables import Line, Span, counted_tables, lost_tables, table_lines
from progress.state.backfill_state import Phase
from progress.state.planning import PlanProgress
from progress.state.report import JobPhase, Report, RequestProgress, VnodeProgress

__all__ = ["Face", "JsonLines", "PlainLines", "TerminalView", "frame_of", "line_of", "open_view", "status_text"]

MAX_CELLS = 1024
TABLES_SHOWN = 11
"""Lines for the tables of a job of many, the one that counts them included."""
_LABEL = 11
_NAMED = 20
_SGR = {"dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1"}
_PHASE_COLOUR = {Phase.PENDING: "dim", Phase.SNAPSHOT: "yellow", Phase.CATCH_UP: "cyan", Phase.LIVE: "green"}
_JOB_COLOUR = {JobPhase.LIVE: "green", JobPhase.FAILED: "red", JobPhase.PAUSED: "cyan", JobPhase.STOPPED: "cyan"}


class Face(StrEnum):
    """How progress is shown; `terminal` falls back to lines where there is none."""

    TERMINAL = "terminal"
    JSON_LINES = "json-lines"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters a view is drawn with, each one column wide."""

    cells: Mapping[Phase, str]
    done: str
    in_hand: str
    left: str
    arrow: str
    cut: str


UNICODE = Glyphs(dict(zip(Phase, "·▒▓█", strict=True)), "█", "▒", "░", "→", "…")
ASCII = Glyphs(dict(zip(Phase, ".-+#", strict=True)), "#", "-", ".", "->", "~")

Size = Callable[[], os.terminal_size]


def open_view(face: str, stream: TextIO | None = None, *, environ: Mapping[str, str] | None = None) -> Reporter:
    """The reporter for a `Face` on `stream`, which is the standard output unless given."""
    stream = sys.stdout if stream is None else stream
    environment = os.environ if environ is None else environ
    match Face(face):
        case Face.QUIET:
            return NullReporter()
        case Face.JSON_LINES:
            return JsonLines(stream)
        case Face.TERMINAL if stream.isatty() and environment.get("TERM", "") not in ("", "dumb"):
            return TerminalView(stream, lambda: window_size(stream), colours=not environment.get("NO_COLOR"))
        case _:
            return PlainLines(stream)


def status_text(report: Report, *, per_vnode: bool = False, glyphs: Glyphs | None = None) -> str:
    """What `status` prints: the view as plain text, driver, positions and requests; a row per vnode if asked."""
    glyphs = glyphs or (UNICODE if _can_show(UNICODE, sys.stdout.encoding) else ASCII)
    lines = [
        "".join(text for text, _ in line).rstrip()
        for line in frame_of(report, 99, 60 + len(report.tables), glyphs, most_tables=len(report.tables) + 1)
    ]
    facts = [("driver", report.observed.driver or "nobody drives this job now")]
    if report.written is not None:
        facts.append(("position", f"captured up to {report.written}, applied up to {report.applied}"))
    if report.observed.reported:
        facts.append(("new", f"{_named(report.observed.reported)}: not copied, because mysql.new_tables is report"))
    facts += definition_facts(report.definition)
    facts += [("request", _request(each)) for each in report.requests]
    lines += [_one_line(f"{name:<{_LABEL}}{text}") for name, text in facts]
    if per_vnode:
        lines.append(f"{'vnode':>7}  {'phase':<9}{'rows':>15}{'epoch':>8}{'worker':>8}  applied")
        lines += [
            f"{v.vnode:>7}  {v.phase:<9}{v.rows:>15,}{v.epoch:>8}{v.worker:>8}  {v.applied}" for v in report.vnodes
        ]
    return "\n".join(lines)


def window_size(stream: TextIO) -> os.terminal_size:
    """The window now; 80 by 24 where the terminal does not know."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except OSError:
        columns, rows = 0, 0
    return os.terminal_size((columns or 80, rows or 24))


class _Stream:
    """A stream to show things on. If its reader goes away the job continues without one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._closed = False
        self.encoding = stream.encoding or "utf-8"

    def write(self, text: str) -> None:
        if self._closed:
            return
        try:
            self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            self._stream.flush()
        except BrokenPipeError:
            self._closed = True

    def close(self) -> None:
        self._closed = True


class _OncePerEpoch:
    """Writes a line when the epoch or what holds the job up has changed, and the last state at the end."""

    def __init__(self, stream: TextIO, form: Callable[[Report], str]) -> None:
        self._out = _Stream(stream)
        self._form = form
        self._shown: tuple[object, ...] | None = None
        self._line = ""
        self._held: Report | None = None

    def show(self, report: Report) -> None:
        retry = report.observed.retry
        lost = lost_tables(report.tables)
        now = (report.epoch, report.phase, report.failure, retry, report.observed.throttled_by, lost, report.planning)
        self._held = report
        if now != self._shown:
            self._shown = now
            self._write(report)

    def close(self) -> None:
        if self._held is not None:
            self._write(self._held)
        self._held = None
        self._out.close()

    def _write(self, report: Report) -> None:
        line = self._form(report)
        if line != self._line:
            self._line = line
            self._out.write(line + "\n")


class PlainLines(_OncePerEpoch):
    """One line per epoch, for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, line_of)


class JsonLines(_OncePerEpoch):
    """One JSON object per epoch and line, in the schema of `Report.to_json`."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, Report.to_json)


class TerminalView:
    """One view of a few lines, redrawn in place at every `show`."""

    def __init__(self, stream: TextIO, size: Size, *, colours: bool = True) -> None:
        self._out = _Stream(stream)
        self._glyphs = UNICODE if _can_show(UNICODE, self._out.encoding) else ASCII
        self._colours = colours
        self._size = size
        self._drawn: list[int] = []

    def show(self, report: Report) -> None:
        columns, rows = self._size()
        # The last column stays free: some terminals wrap when it is written.
        lines = frame_of(report, max(columns - 1, 1), max(rows - 1, 1), self._glyphs)
        up = sum(max(1, -(-width // max(columns, 1))) for width in self._drawn)
        text = f"\r\x1b[{up}A" if up else "\r"
        text += "".join(f"{self._painted(line)}\x1b[K\n" for line in lines)
        self._out.write(text + "\x1b[J")
        self._drawn = [sum(_columns(part) for part, _ in line) for line in lines]

    def close(self) -> None:
        self._out.close()

    def _painted(self, line: Line) -> str:
        if not self._colours:
            return "".join(text for text, _ in line)
        return "".join(f"\x1b[{_SGR[colour]}m{text}\x1b[0m" if colour else text for text, colour in line)


def frame_of(
    report: Report, width: int, height: int, glyphs: Glyphs = UNICODE, *, most_tables: int = TABLES_SHOWN
) -> list[Line]:
    """The view as lines of at most `width` columns, at most `height` of them; the grid takes what room is left.

    Of a job of many tables the ones that matter most are shown, or all of them where nothing is redrawn.
    """
    lines: list[Line] = [_title(report, width, glyphs), _bar(report, width, glyphs)]
    facts = [*_work(report), *_trouble(report)]
    lines += [[(f"{name:<{_LABEL}}", "dim"), (text, colour)] for name, text, colour in facts]
    lines += table_lines(report.tables, width, min(most_tables, height - len(lines)), _LABEL)
    room = min(height, 30 + len(report.tables)) - len(lines) - 1
    lines += _grid(report.vnodes, width - _LABEL, room, glyphs)
    return [_fitted(line, width, glyphs) for line in lines[:height]]


def line_of(report: Report) -> str:
    """A report as one plain line."""
    parts = [f"epoch {report.epoch}", str(report.phase), f"{report.percent:.2f} %", _rows(report), _speed(report)]
    if report.planning is not None:
        parts = [str(report.phase), _planned(report.planning)]
    parts.append(f"log {_log(report)}" if _log(report) else "")
    parts.append(counted_tables(report.tables))
    parts += [f"{name}: {text}" if name else text for name, text, _ in _trouble(report)]
    return "  ".join(_one_line(part) for part in parts if part)


def _title(report: Report, width: int, glyphs: Glyphs) -> Line:
    subject, epoch = report.subject, f"epoch {report.epoch}"
    name = _one_line(subject.job)
    path = _one_line(f"  {subject.source} {glyphs.arrow} {subject.sink}")
    fitted = _fitted([(name, "bold"), (path, "")], width - len(epoch) - 2, glyphs)
    used = sum(_columns(text) for text, _ in fitted)
    return [*fitted, (" " * (width - used - len(epoch)), ""), (epoch, "dim")]


def _bar(report: Report, width: int, glyphs: Glyphs) -> Line:
    percent = f"{report.percent:7.2f} %"
    room = max(min(width - _LABEL - len(percent), 64), 1)
    done = min(int(room * report.percent / 100), room)
    in_hand = min(int(room * (report.percent + report.percent_in_hand) / 100), room) - done
    colour = _JOB_COLOUR.get(report.phase, "yellow")
    label, left = (f"{report.phase:<{_LABEL}}", colour), glyphs.left * (room - done - in_hand)
    return [label, (glyphs.done * done, colour), (glyphs.in_hand * in_hand, colour), (left, "dim"), (percent, "bold")]


def _work(report: Report) -> list[tuple[str, str, str]]:
    """Rows, and as far as they are known speed, log and workers, as label, text and colour."""
    if report.planning is not None:
        return [("plan", _planned(report.planning), "")]
    bitmaps = " | ".join(worker.bitmap for worker in report.workers)
    facts = [
        ("rows", f"{_rows(report)} in {report.ranges:,} of {report.ranges_total:,} ranges{_in_hand(report)}"),
        ("speed", _speed(report)),
        ("log", _log(report)),
        ("lake", _lake(report)),
        ("workers", f"{len(report.workers)}: {bitmaps}" if report.workers else ""),
    ]
    return [(name, text, "") for name, text in facts if text]


def _planned(seen: PlanProgress) -> str:
    since = seen.since.isoformat(sep=" ", timespec="seconds")
    return f"{seen.rows:,} of about {seen.estimated_rows:,} rows in {seen.ranges:,} ranges, {seen.percent:.2f} %, since {since}"


def _in_hand(report: Report) -> str:
    rows = report.observed.in_hand.rows
    return f", {rows:,} more in progress" if rows else ""


def _rows(report: Report) -> str:
    if report.ranges >= report.ranges_total:
        return f"{report.rows:,} rows read"
    return f"{report.rows:,} of about {report.estimated_rows:,} rows"


def _speed(report: Report) -> str:
    parts: list[str] = []
    if report.phase is JobPhase.LIVE:
        return ""
    if report.observed.rows_per_second is not None:
        parts.append(f"{report.observed.rows_per_second:,.0f} rows/s")
    if report.eta_seconds is not None:
        parts.append(f"{duration(report.eta_seconds)} left")
    if report.rate_limit is not None:
        parts.append(f"limit {report.rate_limit:,} rows/s")
    return ", ".join(parts)


def _log(report: Report) -> str:
    seen = report.observed
    parts: list[str] = []
    if seen.lag_seconds is not None:
        parts.append(f"{duration(seen.lag_seconds)} behind")
    if seen.lag_bytes is not None:
        parts.append(f"{size_text(seen.lag_bytes)} to read")
    if seen.buffer_bytes is not None:
        parts.append(f"{size_text(seen.buffer_bytes)} buffered")
    return ", ".join(parts)


def _lake(report: Report) -> str:
    """How old the target is, and in what shape; nothing before its first merge, and of vectors where there are some."""
    seen, target = report.observed, report.observed.target
    parts = [] if seen.lake_age_seconds is None else [f"{duration(seen.lake_age_seconds)} old"]
    if target is not None and target.changed_bytes:
        parts.append(f"{target.files:,} files")
        if target.vector_share is not None:
            parts.append(f"{100 * target.vector_share:.1f} % gone")
        if target.fold_debt_bytes:
            parts.append(f"{size_text(target.fold_debt_bytes)} to fold")
        parts.append(f"{target.write_amplification or 0:,.1f} bytes written per byte changed")
    return ", ".join(parts)


def _named(names: Sequence[str]) -> str:
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left:,} more" if left > 0 else "")


def _request(request: RequestProgress) -> str:
    asked = f"#{request.id} {request.kind}"
    if request.who:
        asked += f" by {request.who} on {request.host}"
    if request.asked_at is not None:
        asked += f" at {request.asked_at.isoformat(sep=' ', timespec='seconds')}"
    if request.epoch is None:
        return f"{asked}: waits for the next barrier"
    return f"{asked}: {f'refused, {request.refused}' if request.refused else 'done'} in epoch {request.epoch}"


def _trouble(report: Report) -> list[tuple[str, str, str]]:
    """What holds the job up, if anything does."""
    seen = report.observed
    found: list[tuple[str, str, str]] = []
    if report.paused:
        found.append(("paused", "on request; the log is still captured", "cyan"))
    if seen.throttled_by:
        found.append(("throttled", seen.throttled_by, "cyan"))
    if seen.lengthened > 1:
        found.append(("slower", f"epochs take {seen.lengthened} times as long: {seen.lengthened_by}", "yellow"))
    found += definition_work(report.definition)
    if seen.retry is not None:
        found.append(("retrying", f"attempt {seen.retry.attempt}: {seen.retry.message}", "red"))
    if report.failure is not None and report.phase is JobPhase.FAILED:
        found.append(("failed", report.failure.message, "red"))
        found += [("", text, "") for text in (report.failure.detail, report.failure.hint) if text]
    return found


def _grid(vnodes: Sequence[VnodeProgress], width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """A character per vnode, or per some neighbours if they are too many; those show the least advanced of them."""
    if not vnodes or height < 1 or width < 1:
        return []
    each = -(-len(vnodes) // min(MAX_CELLS, width * height))
    order = list(Phase)
    cells = [min((v.phase for v in vnodes[i : i + each]), key=order.index) for i in range(0, len(vnodes), each)]
    legend: list[Span] = [(f"{'vnodes':<{_LABEL}}", "dim")]
    for phase in Phase:
        count = sum(vnode.phase is phase for vnode in vnodes)
        legend += [(glyphs.cells[phase], _PHASE_COLOUR[phase]), (f" {count:,} {phase}   ", "")]
    if each > 1:
        legend.append((f"({each} per character)", "dim"))
    return [legend, *(_grid_row(cells[i : i + width], glyphs) for i in range(0, len(cells), width))]


def _grid_row(cells: Sequence[Phase], glyphs: Glyphs) -> Line:
    """Neighbours of one phase share a span, so that a redraw sends few colour codes."""
    spans: list[Span] = [(" " * _LABEL, "")]
    for phase in cells:
        glyph, colour = glyphs.cells[phase], _PHASE_COLOUR[phase]
        if spans[-1][1] == colour:
            spans[-1] = (spans[-1][0] + glyph, colour)
        else:
            spans.append((glyph, colour))
    return spans


def _fitted(line: Line, width: int, glyphs: Glyphs) -> list[Span]:
    """The line cut to `width` columns, without control characters: text from a server must not control the terminal."""
    clean = [(_one_line(text), colour) for text, colour in line]
    if sum(_columns(text) for text, _ in clean) <= width:
        return clean
    fitted: list[Span] = []
    room = width - len(glyphs.cut)
    for text, colour in clean:
        part = _first_columns(text, room)
        room -= _columns(part)
        fitted.append((part, colour))
        if part != text:
            break
    return [*fitted, (glyphs.cut, "")]


def _first_columns(text: str, width: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += _columns(character)
        if used > width:
            return text[:place]
    return text


def _columns(text: str) -> int:
    """How many columns a terminal needs: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in ("W", "F")) for each in text
    )


def _can_show(glyphs: Glyphs, encoding: str | None) -> bool:
    try:
        drawn = [*glyphs.cells.values(), glyphs.done, glyphs.in_hand, glyphs.left, glyphs.arrow, glyphs.cut]
        "".join(drawn).encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)
