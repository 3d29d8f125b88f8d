"""A job of many tables in a terminal: totals, and the tables that matter most."""

from __future__ import annotations

import io
from dataclasses import replace

from progress.faces.terminal import PlainLines, frame_of, status_text
from progress.faces.terminal_tables import by_importance
from tests.tables_reports import NO_KEY, tables_report


def texts(width: int, height: int, tables: int) -> list[str]:
    return ["".join(text for text, _ in line) for line in frame_of(tables_report(tables), width, height)]


def test_view_of_sixty_tables_fits_a_small_terminal_and_shows_ten_of_them() -> None:
    lines = texts(79, 23, 60)
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 79
    counted = next(line for line in lines if line.startswith("tables"))
    assert counted == "tables     61: 1 failed, 1 set aside, 20 snapshot, 39 live; 10 shown"
    shown = [line.split()[0] for line in lines if line.strip().startswith("shop.")]
    assert shown[:3] == ["shop.audit", "shop.table_003", "shop.table_004"]
    assert len(shown) == 10
    assert any(line.startswith("vnodes") for line in lines)


def test_tables_that_are_least_far_come_before_the_largest() -> None:
    names = [table.name for table in by_importance(tables_report(20).tables)]
    assert names[3:6] == ["shop.table_002", "shop.table_005", "shop.table_008"]


def test_status_lists_every_table_largest_first_with_its_reason() -> None:
    lines = status_text(tables_report(30)).splitlines()
    shown = [line for line in lines if line.strip().startswith("shop.")]
    assert len(shown) == 31
    assert NO_KEY[:30] in shown[-1]
    largest = max(tables_report(30).tables, key=lambda table: table.estimated_rows)
    assert shown[0].split()[0] == largest.name


def test_line_per_epoch_counts_tables_and_a_table_that_fails_is_worth_a_line() -> None:
    printed, report = io.StringIO(), tables_report(12)
    lines = PlainLines(printed)
    well = replace(report, tables=tuple(table for table in report.tables if not table.error))
    for each in (well, well, report, report):
        lines.show(each)
    assert [line.rpartition("  ")[2] for line in printed.getvalue().splitlines()] == [
        "10 tables: 4 snapshot, 6 live", "13 tables: 1 failed, 1 set aside, 4 snapshot, 7 live",
    ]  # fmt: skip


def test_job_of_one_table_has_no_line_of_tables() -> None:
    report = next(iter(tables_report(3).parts.values()))
    assert "tables" not in status_text(report)
