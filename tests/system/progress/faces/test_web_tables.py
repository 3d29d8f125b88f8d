"""The page of a job of many tables in a real browser: every table, and the vnodes of the one that is chosen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devkit.browser import Browser
from devkit.process import free_ports
from progress.faces.web import WebReporter
from tests.tables_reports import NO_KEY, tables_report

_CLICK = "[...document.querySelectorAll('#tables button')].find((each) => each.innerText === 'shop.table_005').click()"
_FILTER = """(() => {
  const field = document.querySelector('#tables-filter');
  field.value = 'table_05';
  field.dispatchEvent(new Event('input'));
})()"""


@pytest.fixture
def web() -> Iterator[WebReporter]:
    reporter = WebReporter("127.0.0.1", free_ports()[0])
    yield reporter
    reporter.close()


def test_page_lists_sixty_tables_filters_them_and_shows_the_vnodes_of_one(web: WebReporter) -> None:
    report = tables_report(60)
    web.show(report)
    with Browser() as browser:
        page = browser.open(web.address)
        page.wait_until("document.querySelectorAll('#tables tbody th').length === 61")
        assert page.text("#tables-note") == "61 tables, 2 not copied"
        assert NO_KEY in page.text("#tables tbody")
        whole = page.evaluate("document.querySelector('#grid').getAttribute('aria-label')")
        page.evaluate(_CLICK)
        page.wait_until("document.querySelector('#vnodes-of').innerText.includes('shop.table_005')")
        page.wait_until(f"document.querySelector('#grid').getAttribute('aria-label') !== {whole!r}")
        page.evaluate(_FILTER)
        page.wait_until("document.querySelectorAll('#tables tbody th').length === 10")
        page.resize(390, 844)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.evaluate("document.querySelector('#vnodes-all').click()")
        page.wait_until(f"document.querySelector('#grid').getAttribute('aria-label') === {whole!r}")


def test_page_of_one_table_has_no_list_of_tables(web: WebReporter) -> None:
    web.show(next(iter(tables_report(3).parts.values())))
    with Browser() as browser:
        page = browser.open(web.address)
        page.wait_until("document.querySelector('#phase').innerText === 'live'")
        assert page.evaluate("document.querySelector('#tables-card').hidden") is True
        page.close()
