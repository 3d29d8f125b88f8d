"""The live view draws over itself and over nothing else; without a terminal there is one line per epoch."""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TextIO

import pytest

from progress.faces.reporters import NullReporter, Reporter
from progress.faces.terminal import (
    ASCII,
    MAX_CELLS,
    JsonLines,
    PlainLines,
    TerminalView,
    frame_of,
    line_of,
    open_view,
    status_text,
    window_size,
)
from progress.faces.terminal_tables import Line
from progress.state.backfill_state import Failure, Phase
from progress.state.definition_report import DefinitionProgress, StatementProgress
from progress.state.report import (
    InHand,
    JobPhase,
    Observed,
    Report,
    RequestProgress,
    Retry,
    Subject,
    VnodeProgress,
    WorkerProgress,
)
from progress.state.schema_state import CopyNote
from progress.state.target_health import TargetHealth, VectorHealth
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import VnodeId

SEEN = Observed(
    rows_per_second=12_000.4, lag_seconds=1.23, lag_bytes=4_100_000, buffer_bytes=31_400_000, driver="host:1"
)
CONTROL = re.compile(r"\x1b\[(\d*)([A-Za-z])|([\r\n])|(.)", re.DOTALL)


def vnodes(*phases: Phase) -> tuple[VnodeProgress, ...]:
    return tuple(VnodeProgress(VnodeId(i), phase, 0, Epoch(1), 0, "") for i, phase in enumerate(phases))


def report(percent: float = 61.2, epoch: int = 41, phase: JobPhase = JobPhase.SNAPSHOT) -> Report:
    return Report(
        Subject("demo", "shop.orders", "/lake/orders"), phase, percent, rows=183_600, estimated_rows=300_000,
        ranges=45, ranges_total=74, observed=SEEN, eta_seconds=250.0, epoch=Epoch(epoch),
        workers=(WorkerProgress(0, "0-3", 4, 0), WorkerProgress(1, "4-7", 4, 0)),
        vnodes=vnodes(*Phase, *Phase),
    )  # fmt: skip


class Screen(io.StringIO):
    """As much of a terminal as the view may use; any other control sequence is an error. `rows` includes scrollback."""

    def __init__(self, columns: int = 80, height: int = 24) -> None:
        super().__init__()
        self.columns, self.height = columns, height
        self.rows = [""]
        self.row = self.column = 0

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.columns, self.height))

    def narrow(self, columns: int) -> None:
        """Make the window narrower: rows that are too long continue in the next one."""
        self.columns = columns
        self.rows = [row[i : i + columns] for row in self.rows for i in range(0, max(len(row), 1), columns)]
        self.row = len(self.rows) - 1

    def write(self, text: str) -> int:
        for number, command, move, character in CONTROL.findall(text):
            if command:
                self._command(command, int(number or 0))
            elif move:
                self._move(move)
            else:
                self._put(character)
        return super().write(text)

    def _command(self, command: str, number: int) -> None:
        match command:
            case "A":
                assert number < self.height, "the view went up beyond the window"
                self.row -= number
                assert self.row >= 0
            case "K" | "J":
                self.rows[self.row] = self.rows[self.row][: self.column]
                if command == "J":
                    del self.rows[self.row + 1 :]
            case _:
                assert command == "m"

    def _move(self, move: str) -> None:
        self.column = 0
        if move == "\n":
            self.row += 1
            self.rows += [""] * (self.row == len(self.rows))

    def _put(self, character: str) -> None:
        assert self.column < self.columns - 1, "a line reached the last column"
        before, after = self.rows[self.row][: self.column], self.rows[self.row][self.column + 1 :]
        self.rows[self.row] = before + character + after
        self.column += 1

    def text(self) -> str:
        return "\n".join(self.rows)


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def shown(view: Reporter, *reports: Report) -> None:
    for each in reports:
        view.show(each)
    view.close()


def test_frame_tells_everything_there_is_to_know() -> None:
    assert texts(frame_of(report(), 79, 23)) == [
        "demo  shop.orders → /lake/orders                                       epoch 41",
        "snapshot   " + "█" * 36 + "░" * 23 + "  61.20 %",
        "rows       183,600 of about 300,000 rows in 45 of 74 ranges",
        "speed      12,000 rows/s, 4 min 10 s left",
        "log        1.2 s behind, 4.1 MB to read, 31.4 MB buffered",
        "workers    2: 0-3 | 4-7",
        "vnodes     · 2 pending   ▒ 2 snapshot   ▓ 2 catch-up   █ 2 live   ",
        "           ·▒▓█·▒▓█",
    ]


def test_what_no_commit_holds_yet_is_the_lighter_part_of_the_bar() -> None:
    shown = replace(report(), observed=replace(SEEN, in_hand=InHand(rows=30_000, ranges=8)))
    _, bar, rows, *_ = ("".join(text for text, _ in line) for line in frame_of(shown, 99, 24))
    assert bar.split()[1].rstrip("░") == "█" * 39 + "▒" * 6
    assert bar.endswith("61.20 %")
    assert rows.endswith("183,600 of about 300,000 rows in 45 of 74 ranges, 30,000 more in progress")


def test_reasons_of_waiting_retrying_and_failing_are_shown() -> None:
    held = replace(
        report(), observed=replace(SEEN, throttled_by="Threads_running 90 over 50"), paused=True, rate_limit=0
    )
    retried = replace(report(), observed=replace(SEEN, retry=Retry(2, "connection lost")))
    failure = Failure(Epoch(41), "binlog is gone", "needed binlog.7\noldest binlog.9", "re-snapshot")
    failed = replace(report(phase=JobPhase.FAILED), failure=failure)
    assert "throttled  Threads_running 90 over 50" in texts(frame_of(held, 79, 23))
    assert "paused     on request; the log is still captured" in texts(frame_of(held, 79, 23))
    assert "limit 0 rows/s" in line_of(held)
    assert "retrying   attempt 2: connection lost" in texts(frame_of(retried, 79, 23))
    assert texts(frame_of(failed, 79, 23))[6:9] == [
        "failed     binlog is gone", "           needed binlog.7 oldest binlog.9", "           re-snapshot",
    ]  # fmt: skip


def test_statements_are_shown_and_what_the_target_is_being_changed_for() -> None:
    index = StatementProgress("binlog.000003:100", "CREATE INDEX by_a ON orders (a)", "none")
    added = StatementProgress("binlog.000003:200", "ALTER TABLE orders\nADD c INT", "the columns follow")
    pending = replace(added, effect="")
    changing = replace(report(), definition=DefinitionProgress(1, 0, pending, statements=(index, added)))
    lines = status_text(changing).splitlines()
    assert "definition version 1, the target has version 0" in lines
    assert "statement  binlog.000003:100 (none): CREATE INDEX by_a ON orders (a)" in lines
    assert "changing   the target is being changed for ALTER TABLE orders ADD c INT at binlog.000003:200" in lines
    gone = replace(report(), definition=DefinitionProgress(ended="dropped at binlog.000003:300"))
    assert "ended      the table was dropped at binlog.000003:300; target and state stay" in status_text(gone)
    assert "definition" not in status_text(replace(report(), definition=DefinitionProgress()))


def test_new_copy_is_shown_with_its_cause_and_what_readers_see() -> None:
    copy = CopyNote(
        "2026-03-01T12:00:00+00:00", "a has another type", "the old copy at binlog.000003:200", "binlog.000003:200",
        "ALTER TABLE orders MODIFY a TEXT",
    )  # fmt: skip
    lines = status_text(replace(report(), definition=DefinitionProgress(new_copy=copy))).splitlines()
    (said,) = [line for line in lines if line.startswith("new copy")]
    assert said.startswith("new copy   since 2026-03-01T12:00:00+00:00: a has another type (binlog.000003:200: ALTER")
    assert "readers    see the old copy at binlog.000003:200" in lines
    asked = replace(copy, offset="", statement="", reason="request 3 asks for it")
    assert "request 3 asks for it" in line_of(replace(report(), definition=DefinitionProgress(new_copy=asked)))


def test_view_draws_over_itself_and_leaves_what_was_above_and_its_last_state() -> None:
    screen = Screen()
    screen.write("$ vnode-backfill run\n")
    view = TerminalView(screen, screen.size)
    held = replace(report(50.0), observed=replace(SEEN, throttled_by="a replica lags"))
    shown(view, report(10.0), held, report(100.0, phase=JobPhase.LIVE))
    assert screen.rows[0] == "$ vnode-backfill run"
    assert screen.text().count("demo") == 1
    assert "a replica lags" not in screen.text()
    assert screen.rows[2].endswith(" 100.00 %")
    for clearing in ("\x1b[2J", "\x1b[3J", "\x1b[H", "\x1bc", "\x1b[?1049h"):
        assert clearing not in screen.getvalue()


def test_nothing_is_drawn_after_the_end() -> None:
    screen = Screen()
    view = TerminalView(screen, screen.size)
    shown(view, report())
    before = screen.getvalue()
    view.show(report(99.0))
    view.close()
    assert screen.getvalue() == before


@pytest.mark.parametrize(("columns", "height"), [(5, 2), (20, 5), (40, 10), (80, 24), (300, 80)])
def test_view_stays_inside_any_window(columns: int, height: int) -> None:
    screen = Screen(columns, height)
    long = replace(report(), subject=Subject("j" * 50, "s" * 200, "表" * 100), vnodes=vnodes(*[Phase.LIVE] * 4096))
    shown(TerminalView(screen, screen.size), long, long)
    assert len(screen.rows) <= height
    assert all(len(row) < columns for row in screen.rows)


def test_rows_that_wrap_after_the_window_became_narrower_are_drawn_over() -> None:
    screen = Screen(80, 60)
    screen.write("$ run\n")
    view = TerminalView(screen, screen.size)
    view.show(report())
    screen.narrow(40)
    view.show(report())
    assert [*screen.rows[:1], *screen.rows[-1:]] == ["$ run", ""]
    assert [row.rstrip() for row in screen.rows[1:-1]] == [text.rstrip() for text in texts(frame_of(report(), 39, 59))]


def test_wide_characters_take_two_columns() -> None:
    named = replace(report(), subject=Subject("表表表", "a", "b"))
    title = texts(frame_of(named, 40, 20))[0]
    assert title == "表表表  a → b" + " " * (40 - 13 - 8) + "epoch 41"


def test_text_of_a_server_cannot_steer_the_terminal() -> None:
    hostile = replace(report(), observed=replace(SEEN, throttled_by="\x1b[2J\x07evil\nline"))
    assert "throttled   [2J evil line" in texts(frame_of(hostile, 79, 23))
    assert "\x1b" not in line_of(hostile)
    assert "\n" not in line_of(hostile)


def test_many_vnodes_share_a_character_that_shows_the_least_advanced_of_them() -> None:
    many = [Phase.LIVE] * 32_768
    many[40] = Phase.CATCH_UP
    lines = texts(frame_of(replace(report(), vnodes=vnodes(*many)), 139, 40))
    cells = "".join(line.strip() for line in lines if set(line.strip()) <= set("·▒▓█"))
    assert len(cells) <= MAX_CELLS
    assert (cells[0], cells[1], set(cells[2:])) == ("█", "▓", {"█"})
    assert any("█ 32,767 live   (32 per character)" in line for line in lines)


def test_phases_are_coloured_and_neighbours_share_one_colour_code() -> None:
    screen = Screen()
    phases = [Phase.LIVE] * 5 + [Phase.PENDING] * 3
    shown(TerminalView(screen, screen.size), replace(report(), vnodes=vnodes(*phases)))
    assert "\x1b[32m█████\x1b[0m\x1b[2m···\x1b[0m" in screen.getvalue()


def test_stream_that_cannot_show_blocks_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    shown(TerminalView(stream, lambda: os.terminal_size((80, 24)), colours=False), report())
    text = raw.getvalue().decode("ascii")
    assert ".-+#.-+#" in text
    assert "shop.orders -> /lake/orders" in text
    assert "?" not in text
    assert texts(frame_of(report(), 79, 23, ASCII))[7].strip() == ".-+#.-+#"


def test_lines_are_written_once_per_epoch_and_the_last_state_at_the_end() -> None:
    stream = io.StringIO()
    last = replace(report(12.0, epoch=2), rows=200_000)
    shown(PlainLines(stream), report(10.0, epoch=1), report(10.5, epoch=1), report(11.0, epoch=2), last)
    assert stream.getvalue().splitlines() == [
        line_of(report(10.0, epoch=1)),
        line_of(report(11.0, epoch=2)),
        line_of(last),
    ]


def test_line_tells_what_the_view_tells() -> None:
    assert line_of(report()) == (
        "epoch 41  snapshot  61.20 %  183,600 of about 300,000 rows  12,000 rows/s, 4 min 10 s left  "
        "log 1.2 s behind, 4.1 MB to read, 31.4 MB buffered"
    )


def test_line_is_written_within_an_epoch_when_phase_or_reason_changes() -> None:
    stream = io.StringIO()
    throttled = replace(report(), observed=replace(SEEN, throttled_by="a replica lags"))
    live = replace(report(100.0, phase=JobPhase.LIVE), ranges=74)
    shown(PlainLines(stream), report(), throttled, live, live)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[1].endswith("throttled: a replica lags")
    assert lines[2] == "epoch 41  live  100.00 %  183,600 rows read  log 1.2 s behind, 4.1 MB to read, 31.4 MB buffered"


def test_json_lines_are_the_documented_reports() -> None:
    stream = io.StringIO()
    shown(JsonLines(stream), report(10.0, epoch=1), report(10.0, epoch=1), report(20.0, epoch=2))
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        json.loads(report(10.0, epoch=1).to_json()), json.loads(report(20.0, epoch=2).to_json()),
    ]  # fmt: skip


def test_figures_that_are_not_known_are_left_out() -> None:
    planning = Report(Subject("demo", "a", "b"), JobPhase.PLANNING, 0.0, 0, 300_000, 0, 74)
    assert [text.split()[0] for text in texts(frame_of(planning, 79, 23))] == ["demo", "planning", "rows"]
    assert line_of(planning) == "epoch 0  planning  0.00 %  0 of about 300,000 rows"


def test_status_tells_driver_position_requests_and_every_vnode() -> None:
    at = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    asked = (
        RequestProgress(1, "rescale", "ada", "db1", at, Epoch(40)),
        RequestProgress(2, "rescale", "ada", "db1", at, Epoch(41), "vnode 3 twice"),
        RequestProgress(3, "pause", "", "", None),
    )
    one = vnodes(Phase.LIVE)
    stopped = replace(
        report(), observed=Observed(), requests=asked, written="binlog.7:40", applied="binlog.7:4", vnodes=one
    )
    lines = status_text(stopped, per_vnode=True, glyphs=ASCII).splitlines()
    assert lines[-7:] == [
        "driver     nobody drives this job now",
        "position   captured up to binlog.7:40, applied up to binlog.7:4",
        "request    #1 rescale by ada on db1 at 2024-05-01 12:30:00+00:00: done in epoch 40",
        "request    #2 rescale by ada on db1 at 2024-05-01 12:30:00+00:00: refused, vnode 3 twice in epoch 41",
        "request    #3 pause: waits for the next barrier",
        "  vnode  phase               rows   epoch  worker  applied",
        "      0  live                   0       1       0  ",
    ]
    assert status_text(stopped, glyphs=ASCII).splitlines() == lines[:-2]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (59.4, "59 s"), (60.0, "1 min 0 s"), (3_725.0, "1 h 2 min"), (100_000.0, "1 d 3 h")],
)
def test_time_left_is_told_in_two_units(seconds: float, text: str) -> None:
    assert f"{text} left" in line_of(replace(report(), eta_seconds=seconds))


def test_reader_that_goes_away_does_not_stop_the_job() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    shown(PlainLines(stream), report(epoch=1), report(epoch=2))
    # What could not be flushed is refused once more when the file is closed.
    with suppress(BrokenPipeError):
        stream.close()


def test_face_and_stream_decide_the_form() -> None:
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream, os.fdopen(controller):
        assert isinstance(_view(stream), TerminalView)
        assert window_size(stream) == (80, 24)
        assert isinstance(_view(stream, term="dumb"), PlainLines)
        assert isinstance(open_view("quiet", stream), NullReporter)
        assert isinstance(open_view("json-lines", stream), JsonLines)
    assert isinstance(_view(io.StringIO()), PlainLines)


def _view(stream: TextIO, term: str = "xterm") -> Reporter:
    return open_view("terminal", stream, environ={"TERM": term})


def test_age_and_shape_of_the_lake_are_shown_as_far_as_they_apply() -> None:
    health = TargetHealth(42, 10**9, 1000, 7, 70, 310, 100, VectorHealth(13, 12_000_000))
    seen = replace(SEEN, lake_age_seconds=2.4, target=health)

    def lake(seen: Observed) -> str:
        return next(line for line in status_text(replace(report(), observed=seen)).splitlines() if "lake  " in line)

    assert (
        lake(seen) == "lake       2.4 s old, 42 files, 1.3 % gone, 12.0 MB to fold, 3.1 bytes written per byte changed"
    )
    rewritten = replace(seen, target=replace(health, vectors=None))
    assert lake(rewritten) == "lake       2.4 s old, 42 files, 3.1 bytes written per byte changed"
    assert lake(replace(seen, target=None)) == "lake       2.4 s old"
    slower = replace(report(), observed=replace(seen, lengthened=8, lengthened_by="its log grows"))
    assert "slower     epochs take 8 times as long: its log grows" in status_text(slower)
