"""The progress page in a real browser, and its server asked by hand."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from devkit.browser import Browser, Page
from devkit.process import free_ports
from progress.faces.metrics import CdcBackfillMetrics
from progress.faces.web import PORTS_TRIED, WebReporter, is_own_host
from progress.state.backfill_state import Acknowledgement, Failure, RequestKind
from progress.state.definition_report import DefinitionProgress, StatementProgress
from progress.state.report import Observed, Retry
from progress.state.schema_state import CopyNote
from progress.state.target_health import TargetHealth, VectorHealth
from tests.job_reports import RUNNING, ImaginaryJob, asked
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import ConfigError

_JOB = ImaginaryJob()
_REASON = Failure(Epoch(42), "binlog position is gone", "The oldest is binlog.000421:4.", "Run `resnapshot --all`.")
_PIXEL = """(() => {
  const canvas = document.querySelector('#grid'), box = canvas.width / canvas.getBoundingClientRect().width;
  const size = canvas.getBoundingClientRect().width / 32, cell = CELL;
  const x = (cell % 32 + 0.5) * size, y = (Math.floor(cell / 32) + 0.8) * size;
  return Array.from(canvas.getContext('2d').getImageData(x * box, y * box, 1, 1).data).join();
})()"""


class Clock:
    """Is advanced by hand, so that samples are a second apart without waiting."""

    def __init__(self) -> None:
        self.now = datetime(2026, 5, 4, 9, 0, tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def web(clock: Clock) -> Iterator[WebReporter]:
    reporter = WebReporter("127.0.0.1", free_ports()[0], clock=clock)
    yield reporter
    reporter.close()


def get(web: WebReporter, path: str, *, method: str = "GET", host: str = "") -> tuple[int, str, dict[str, str]]:
    port = int(web.address.rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    told = answer.status, answer.read().decode(), dict(answer.headers)
    connection.close()
    return told


def colour(page: Page, cell: int) -> object:
    return page.evaluate(_PIXEL.replace("CELL", str(cell)))


def test_page_shows_the_figures_and_follows_new_reports(browser: Browser, web: WebReporter, clock: Clock) -> None:
    seen = replace(RUNNING, rows_per_second=21_000.0, lag_seconds=1.5, lag_bytes=310_000, buffer_bytes=42_000_000)
    first, second = _JOB.report(_JOB.at(0.2), seen), _JOB.report(_JOB.at(0.7, epoch=60), seen)
    web.show(first)
    page = browser.open(web.address)
    page.wait_until(f"document.querySelector('#percent').innerText === '{first.percent:.2f}'")
    assert page.text("#rows") == f"{first.rows:,}"
    assert page.text("#rate") == "21 k rows/s"
    assert page.text("#lag") == "1.5 s"
    assert page.text("#buffer") == "42 MB"
    assert page.text("#phase") == "snapshot"
    clock.now += 12
    web.show(second)
    page.wait_until(f"document.querySelector('#percent').innerText === '{second.percent:.2f}'")
    assert page.text("#epoch") == "60"
    assert "12 s" in page.text("#epochs tbody")
    assert page.evaluate("document.querySelectorAll('#rate-plot .line').length") == 1
    page.close()


def test_page_shows_age_and_shape_of_the_target_as_far_as_they_apply(browser: Browser, web: WebReporter) -> None:
    health = TargetHealth(42, 1_300_000_000, 1000, 7, 70, 310, 100, VectorHealth(13, 12_000_000))
    slower = "its log grew by 70 MB in a minute"
    seen = replace(RUNNING, lake_age_seconds=2.4, target=health, lengthened=4, lengthened_by=slower)
    web.show(_JOB.report(_JOB.live(), seen))
    page = browser.open(web.address)
    page.wait_until("document.querySelector('#lake-age').innerText === '2.4 s'")
    figures = [page.text(f"#{name}") for name in ("target", "target-note", "vectors", "vectors-note", "cost")]
    assert figures == ["1.3 GB", "42 files", "1.3 %", "12 MB to fold", "3.1 ×"]
    assert f"Epochs take 4 times as long as configured: {slower}" in page.text("#notices")
    web.show(_JOB.report(_JOB.live(), replace(seen, target=replace(health, vectors=None))))
    page.wait_until("document.querySelector('#vectors-fact').hidden")
    assert page.evaluate("document.querySelector('#target-fact').hidden") is False
    web.show(_JOB.report(_JOB.live(), replace(seen, target=None)))
    page.wait_until("document.querySelector('#target-fact').hidden && document.querySelector('#cost-fact').hidden")
    assert page.text("#lake-age") == "2.4 s"
    page.close()


def test_page_shows_statements_and_what_the_target_is_being_changed_for(browser: Browser, web: WebReporter) -> None:
    report = _JOB.report(_JOB.live(), RUNNING)
    web.show(report)
    page = browser.open(web.address, width=375, height=812)
    page.wait_until("document.querySelector('#phase-word').innerText === 'live'")
    assert page.evaluate("document.querySelector('#statements-card').hidden") is True
    added = StatementProgress(
        "binlog.000003:200", "ALTER TABLE orders ADD `<b>` INT" + " " * 9 + "x" * 400, "the columns follow"
    )
    web.show(replace(report, definition=DefinitionProgress(2, 1, replace(added, effect=""), "", (added,))))
    page.wait_until("!document.querySelector('#statements-card').hidden")
    assert page.text("#definition") == "version 2, target at 1"
    assert "ADD `<b>` INT" in page.text("#statements tbody")
    assert "The target is being changed for the statement at binlog.000003:200" in page.text("#notices")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    copy = CopyNote(
        "2026-03-01T12:00:00+00:00", "a has another type", "the old copy at binlog.000003:200", "binlog.000003:200",
        "ALTER TABLE orders MODIFY a <i>",
    )  # fmt: skip
    web.show(replace(report, definition=DefinitionProgress(new_copy=copy)))
    page.wait_until("document.querySelector('#notices').innerText.includes('A new copy of the table is being made')")
    assert "A has another type (binlog.000003:200: ALTER TABLE orders MODIFY a <i>)." in page.text("#notices")
    assert "Until it is live, readers see the old copy at binlog.000003:200." in page.text("#notices")
    web.show(replace(report, definition=DefinitionProgress(2, 2, ended="dropped at binlog.000003:300")))
    page.wait_until(
        "document.querySelector('#notices').innerText.includes('The table was dropped at binlog.000003:300')"
    )
    page.close()


def test_squares_fill_as_vnodes_advance(browser: Browser, web: WebReporter) -> None:
    web.show(_JOB.report(_JOB.start))
    page = browser.open(web.address)
    page.wait_until("document.querySelector('#grid').dataset.cells === '256'")
    pending = colour(page, 0)
    web.show(_JOB.report(_JOB.at(0.5)))
    page.wait_until("document.querySelector('#legend [data-phase=live] strong').innerText !== '0'")
    live = colour(page, 0)
    assert live != pending == colour(page, 63)
    counts = [
        page.text(f"#legend [data-phase={phase}] strong") for phase in ("pending", "snapshot", "catch-up", "live")
    ]
    assert sum(map(int, counts)) == 256
    label = str(page.evaluate("document.querySelector('#grid').ariaLabel"))
    assert label.startswith("256 vnodes: ")
    assert f"{counts[3]} live" in label
    page.close()


def test_square_tells_its_vnode(browser: Browser, web: WebReporter) -> None:
    report = _JOB.report(_JOB.at(0.5))
    web.show(report)
    page = browser.open(web.address)
    page.wait_until("document.querySelector('#grid').dataset.cells === '256'")
    press = "document.querySelector('#grid').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
    page.evaluate(f"{press}, {press}")
    page.wait_until("document.querySelector('#vnode').innerText.startsWith('Vnode 1: ')")
    assert f"{report.vnodes[1].rows:,} rows, worker 0" in page.text("#vnode")
    page.close()


def test_phone_shows_everything_without_scrolling_sideways(browser: Browser, web: WebReporter) -> None:
    many = tuple(asked(number, RequestKind.RESCALE, datetime.now(UTC), "a-rather-long-name") for number in range(9))
    answers = (Acknowledgement(2, Epoch(9), "300 workers cannot share 256 vnodes"),)
    web.show(_JOB.report(replace(_JOB.at(0.5), acknowledged=answers), replace(RUNNING, asked=many)))
    page = browser.open(web.address, width=375, height=812, dark=True)
    page.wait_until("document.querySelector('#grid').dataset.cells === '256'")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 25)"
    page.close()


def test_many_vnodes_share_squares(browser: Browser, web: WebReporter) -> None:
    job = ImaginaryJob(vnodes=32768, ranges=40_000, workers=8)
    web.show(job.report(job.at(0.5)))
    page = browser.open(web.address)
    page.wait_until("Number(document.querySelector('#grid').dataset.per) > 1")
    cells = page.evaluate("const {cells, per} = document.querySelector('#grid').dataset; cells * per")
    assert cells == 32768
    assert "32,768 vnodes, a square is" in page.text("#grid-note")
    page.close()


def test_page_loads_nothing_from_elsewhere_and_breaks_no_rule_of_its_own(browser: Browser, web: WebReporter) -> None:
    web.show(_JOB.report(_JOB.at(0.5)))
    page = browser.open(web.address)
    page.wait_until("document.querySelector('#grid').dataset.cells === '256'")
    loaded = page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert isinstance(loaded, list)
    assert {f"{web.address}{name}" for name in ("page.js", "page.css", "page.json", "history.json")} <= set(loaded)
    assert all(str(name).startswith(web.address) for name in loaded)
    refused = "fetch('http://127.0.0.1:9/').then(() => 'loaded', () => 'refused')"
    assert page.evaluate(refused) == "refused"
    inline = (
        "const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s); window.ran"
    )
    assert page.evaluate(inline) is None
    page.close()


def test_text_of_others_is_shown_as_text(browser: Browser, web: WebReporter) -> None:
    wicked = "<img src=x onerror='window.ran=1'>"
    web.show(_JOB.report(_JOB.at(0.5), replace(RUNNING, retry=Retry(2, wicked))))
    page = browser.open(web.address)
    page.wait_until("document.querySelector('#troubles').innerText.includes('img')")
    assert wicked in page.text("#notices")
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    page.close()


def test_open_page_gets_the_reason_of_a_failure_and_then_says_the_driver_is_gone(browser: Browser) -> None:
    web = WebReporter("127.0.0.1", free_ports()[0])
    web.show(_JOB.report(_JOB.at(0.5)))
    page = browser.open(web.address)
    page.wait_until("document.querySelector('#phase').innerText === 'snapshot'")
    web.show(_JOB.report(replace(_JOB.at(0.5), failure=_REASON), Observed()))
    web.close()
    page.wait_until("document.querySelector('#phase').innerText === 'driver gone'")
    assert "Driver gone since" in page.text("#notices")
    assert "Failed in epoch 42: binlog position is gone" in page.text("#notices")
    assert page.text("#notices .notice:last-child code") == "resnapshot --all"
    page.close()


def test_page_comes_back_with_the_driver(browser: Browser) -> None:
    (port,) = free_ports()
    web = WebReporter("127.0.0.1", port)
    web.show(_JOB.report(_JOB.at(0.5)))
    page = browser.open(web.address)
    page.wait_until("document.querySelector('#phase').innerText === 'snapshot'")
    web.close()
    page.wait_until("document.querySelector('#phase').innerText === 'driver gone'")
    web = WebReporter("127.0.0.1", port)
    web.show(_JOB.report(_JOB.live()))
    page.wait_until("document.querySelector('#phase').innerText === 'live'")
    assert page.text("#notices") == ""
    assert page.text("#percent") == "100.00"
    page.close()
    web.close()


def test_progress_and_history_are_json(web: WebReporter, clock: Clock) -> None:
    assert get(web, "/progress.json")[0] == 503
    for share in (0.2, 0.3):
        report = _JOB.report(_JOB.at(share), replace(RUNNING, lag_seconds=2.0))
        web.show(report)
        clock.now += 5
    status, body, _ = get(web, "/progress.json")
    assert (status, body) == (200, report.to_json(per_vnode=True))
    history = json.loads(get(web, "/history.json")[1])
    assert [sample["rows"] for sample in history["whole"]][-1] == report.rows
    assert history["recent"][0]["lag_seconds"] == 2.0
    vnodes = json.loads(get(web, "/vnodes.json?first=3&last=500")[1])["vnodes"]
    assert [vnode["vnode"] for vnode in vnodes] == list(range(3, 67))
    assert get(web, "/vnodes.json?first=x")[0] == 400


def test_health_is_that_of_the_job(web: WebReporter, clock: Clock) -> None:
    assert get(web, "/healthz")[:2] == (503, "starting: there is no report yet\n")
    web.show(_JOB.report(_JOB.at(0.5)))
    assert get(web, "/healthz")[0] == 200
    web.show(_JOB.report(_JOB.at(0.5), replace(RUNNING, stalled="the driver has finished nothing for 601 s")))
    assert get(web, "/healthz")[:2] == (503, "stalled: the driver has finished nothing for 601 s\n")
    web.show(_JOB.report(_JOB.at(0.5)))
    clock.now += 61
    assert get(web, "/healthz")[:2] == (503, "stale: the driver has not reported for 61 s\n")
    web.show(_JOB.report(replace(_JOB.at(0.5), failure=_REASON), Observed()))
    assert get(web, "/healthz")[:2] == (503, "failed: binlog position is gone\n")


def test_metrics_are_served(clock: Clock) -> None:
    metrics = CdcBackfillMetrics()
    metrics.observe_buffered(7)
    web = WebReporter("127.0.0.1", free_ports()[0], metrics=metrics, clock=clock)
    assert "vnode_backfill_buffered_changes_total 7.0" in get(web, "/metrics")[1]
    web.close()


def test_only_looking_is_allowed(web: WebReporter) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
        status, _, headers = get(web, "/", method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
    status, body, headers = get(web, "/", method="HEAD")
    assert (status, body) == (200, "")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert get(web, "/../pyproject.toml")[0] == get(web, "/web.py")[0] == 404


def test_name_that_is_not_ours_is_misdirected(web: WebReporter) -> None:
    assert get(web, "/progress.json", host="evil.example")[0] == 421
    assert get(web, "/page.json", host="localhost:9999")[0] == 200


@pytest.mark.parametrize(
    ("header", "own"),
    [
        ("127.0.0.1:8321", True),
        ("[::1]:8321", True),
        ("10.1.2.3", True),
        ("LOCALHOST.", True),
        ("etl-3:8321", True),
        ("etl-3.evil.example", False),
        ("127.0.0.1.evil.example:8321", False),
        ("localhost.evil.example", False),
    ],
)
def test_host_is_ours_by_address_or_by_known_name(header: str, *, own: bool) -> None:
    assert is_own_host(header, frozenset({"localhost", "etl-3"})) is own


def test_taken_port_moves_to_the_next_and_all_taken_is_refused() -> None:
    with ExitStack() as stack:
        (port,) = free_ports()
        opened = [WebReporter("127.0.0.1", port) for _ in range(PORTS_TRIED - 3)]
        for reporter in opened:
            stack.callback(reporter.close)
        assert opened[0].address == f"http://127.0.0.1:{port}/"
        assert len({reporter.address for reporter in opened}) == len(opened)
        stack.enter_context(pytest.raises(ConfigError, match=r"^ui.port: \d+ to \d+ are all in use on 127.0.0.1"))
        for _ in range(PORTS_TRIED):
            stack.callback(WebReporter("127.0.0.1", port).close)


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^ui.host: cannot listen on 192\.0\.2\.1"):
        WebReporter("192.0.2.1", free_ports()[0])
