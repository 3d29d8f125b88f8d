"""What the page's server answers about a job of many tables stays small, however many there are."""

from __future__ import annotations

import json
from dataclasses import replace
from http import HTTPStatus

from progress.faces.metrics import CdcBackfillMetrics
from progress.faces.web_answers import Answers
from progress.state.report import Report
from tests.tables_reports import NO_KEY, tables_report


def answers_about(report: Report) -> Answers:
    answers = Answers(CdcBackfillMetrics())
    answers.show(report)
    return answers


def document(answers: Answers, path: str) -> dict[str, object]:
    found = json.loads(answers.answer(path).body)
    assert isinstance(found, dict)
    return found


def test_page_of_a_thousand_tables_gets_two_hundred_and_the_lost_ones_first() -> None:
    report = tables_report(6)
    many = (*(replace(report.tables[0], name=f"shop.t{number}") for number in range(1000)), *report.tables)
    answers = answers_about(replace(report, tables=many))
    shown = document(answers, "/page.json")
    tables = shown["tables"]
    assert isinstance(tables, list)
    assert [(each["name"], each["error"]) for each in tables[1:2]] == [("shop.audit", NO_KEY)]
    assert (len(tables), shown["tables_found"], shown["tables_total"], shown["tables_lost"]) == (200, 1007, 1007, 2)
    assert "tables" not in shown["report"]  # type: ignore[operator]
    assert len(answers.answer("/page.json").body) < 100_000


def test_tables_are_filtered_by_name_without_regard_to_case() -> None:
    shown = document(answers_about(tables_report(12)), "/page.json?tables=TABLE_01")
    tables = shown["tables"]
    assert isinstance(tables, list)
    assert {each["name"] for each in tables} == {"shop.table_010", "shop.table_011"}
    assert (shown["tables_found"], shown["tables_total"]) == (2, 13)
    assert document(answers_about(tables_report(3)), "/page.json?tables=%00")["tables"] == []


def test_one_table_is_answered_with_its_own_vnodes() -> None:
    report = tables_report(6)
    answers = answers_about(report)
    part = report.parts["shop.table_005"]
    found = document(answers, "/table.json?table=shop.table_005")
    assert found["report"] == json.loads(part.to_json())
    assert len(str(found["grid"])) == len(part.vnodes) == 64
    assert set(str(found["grid"])) != set(str(document(answers, "/table.json?table=shop.table_001")["grid"]))
    vnodes = document(answers, "/vnodes.json?first=0&last=1&table=shop.table_001")["vnodes"]
    assert [each["rows"] for each in vnodes] == [v.rows for v in report.parts["shop.table_001"].vnodes[:2]]  # type: ignore[attr-defined]


def test_table_that_nobody_has_is_not_found() -> None:
    answers = answers_about(tables_report(3))
    for path in ("/table.json", "/table.json?table=shop.audit", "/table.json?table=../x"):
        assert answers.answer(path).status is HTTPStatus.NOT_FOUND
    assert document(answers, "/vnodes.json?first=0&last=1&table=nothing")["vnodes"] == []
