"""Answers each path of the progress page's server, without a socket.

    /                   the page; its script and style beside it
    /page.json          what the page draws, once a second: report, one letter per vnode, alerts, epochs, troubles
                        ?tables=shop: of a job of many tables up to 200 whose name holds that, and how many there are
    /table.json         ?table=shop.orders: one table of a job of many: {grid, report}
    /vnodes.json        ?first=3&last=9: up to 64 vnodes in full, for the square under the pointer; of one table with
                        &table=shop.orders
    /progress.json      the documented report with all vnodes, the same as `status --json --per-vnode`
    /history.json       {version, recent, whole}: samples {at, percent, rows, rows_per_second, lag_seconds, lag_bytes,
                        buffer_bytes}, of the last quarter of an hour and of the whole run
    /healthz            200 while the last report is fresh, work is finished and the job has not failed, else 503; the
                        reason as text
    /metrics            Prometheus

Nothing here changes the job, and nothing here is secret: a report holds no password and no option of the configuration.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

from progress.faces.alerts import Sample
from progress.faces.history import History
from progress.faces.metrics import CdcBackfillMetrics
from progress.state.backfill_state import Phase
from progress.state.report import SET_ASIDE, JobPhase, Report

FRESH_SECONDS = 60.0
"""A driver that has not reported for this long is unhealthy. It reports a few times a second, also while it waits."""
_PAGE_OPEN_SECONDS = 3.0
_VNODES_AT_ONCE = 64
_TABLES_AT_ONCE = 200
_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
_STATIC = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/grid.js": ("grid.js", "text/javascript; charset=utf-8"),
    "/plot.js": ("plot.js", "text/javascript; charset=utf-8"),
    "/tables.js": ("tables.js", "text/javascript; charset=utf-8"),
    "/many.js": ("many.js", "text/javascript; charset=utf-8"),
    "/words.js": ("words.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_LETTERS = {Phase.PENDING: "p", Phase.SNAPSHOT: "s", Phase.CATCH_UP: "c", Phase.LIVE: "l"}


@dataclass(frozen=True, slots=True)
class Answer:
    status: HTTPStatus
    content_type: str
    body: bytes


class Answers:
    """The newest report and every answer about it. Safe to call from any thread; `clock` gives seconds since 1970."""

    def __init__(
        self, metrics: CdcBackfillMetrics, history: History | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._metrics = metrics
        self._history = history or History()
        self._clock = clock
        self._changed = threading.Condition()
        self._report: Report | None = None
        self._shown_at = 0.0
        self._asked_at = float("-inf")
        self._answered = False
        self._whole_lock = threading.Lock()
        self._whole: tuple[Report, Answer] | None = None
        package = files("progress.faces.web_page")
        self._files = {
            path: Answer(HTTPStatus.OK, kind, package.joinpath(name).read_bytes())
            for path, (name, kind) in _STATIC.items()
        }

    def show(self, report: Report) -> None:
        now = self._clock()
        with self._changed:
            self._history.add(report, now, self._metrics.retention)
            alerts = self._history.alerts
            self._report, self._shown_at, self._answered = report, now, False
        self._metrics.observe_alerts(alerts)

    def answer(self, target: str, accept: str = "") -> Answer:
        """The answer to a GET of `target`, which is a path and perhaps a query."""
        try:
            parts = urlsplit(target)
        except ValueError as error:
            return _text(HTTPStatus.BAD_REQUEST, f"not an address: {error}")
        if parts.path in self._files:
            return self._files[parts.path]
        match parts.path:
            case "/page.json":
                return self._page(parts.query)
            case "/table.json":
                return self._table(parts.query)
            case "/vnodes.json":
                return self._vnodes(parts.query)
            case "/progress.json":
                return self._progress()
            case "/history.json":
                return self._samples()
            case "/healthz":
                return self._health()
            case "/metrics":
                body, content_type = self._metrics.expose(accept)
                return Answer(HTTPStatus.OK, content_type, body)
            case _:
                return _text(HTTPStatus.NOT_FOUND, f"nothing at {parts.path}")

    def last_word(self, seconds: float) -> None:
        """Return once an open page has the newest report; after `seconds` at the latest, at once if no page is open."""
        with self._changed:
            if self._clock() - self._asked_at < _PAGE_OPEN_SECONDS:
                self._changed.wait_for(lambda: self._answered, seconds)

    def _page(self, query: str) -> Answer:
        with self._changed:
            report, history, now = self._report, self._history, self._clock()
            shown: dict[str, object] = {
                "now": now,
                "shown_at": self._shown_at,
                "grid": "" if report is None else _grid(report),
                "sample": _sample(history.recent[-1]) if history.recent else None,
                "alerts": [asdict(alert) for alert in history.alerts],
                "epochs": [asdict(epoch) for epoch in history.epochs],
                "troubles": [asdict(trouble) for trouble in history.troubles],
            }
            self._asked_at, self._answered = now, True
            self._changed.notify_all()
        if report is not None and report.tables:
            shown |= _tables(report, _asked(query, "tables"))
            report = replace(report, tables=())
        whole = "null" if report is None else report.to_json()
        return _json(f'{json.dumps(shown)[:-1]}, "report": {whole}}}')

    def _table(self, query: str) -> Answer:
        name, report = _asked(query, "table"), self._newest()
        part = None if report is None else report.parts.get(name)
        if part is None:
            return _text(HTTPStatus.NOT_FOUND, "no table of the job has this name, or it is set aside")
        return _json(f'{{"grid": {json.dumps(_grid(part))}, "report": {part.to_json()}}}')

    def _vnodes(self, query: str) -> Answer:
        asked = parse_qs(query)
        ends = asked.get("first", ["0"])[-1], asked.get("last", ["0"])[-1]
        if not all(end.isascii() and end.isdigit() and len(end) < 9 for end in ends):
            return _text(HTTPStatus.BAD_REQUEST, "first and last are numbers of vnodes: /vnodes.json?first=3&last=9")
        first, last = int(ends[0]), min(int(ends[1]), int(ends[0]) + _VNODES_AT_ONCE - 1)
        report, table = self._newest(), _asked(query, "table")
        if report is not None and table:
            report = report.parts.get(table)
        vnodes = () if report is None else report.vnodes[first : last + 1]
        return _json(json.dumps({"vnodes": [vnode._asdict() for vnode in vnodes]}))

    def _progress(self) -> Answer:
        report = self._newest()
        if report is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "starting: there is no report yet")
        with self._whole_lock:
            # Made once for each report: with many vnodes it takes long, and many may ask.
            if self._whole is None or self._whole[0] is not report:
                self._whole = report, _json(report.to_json(per_vnode=True))
            return self._whole[1]

    def _samples(self) -> Answer:
        with self._changed:
            recent, whole = self._history.recent, self._history.whole
        return _json(
            json.dumps({"version": 1, "recent": list(map(_sample, recent)), "whole": list(map(_sample, whole))})
        )

    def _health(self) -> Answer:
        with self._changed:
            report, age = self._report, self._clock() - self._shown_at
        if report is None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "starting: there is no report yet")
        if report.phase is JobPhase.FAILED:
            reason = report.failure.message if report.failure else "no reason is known"
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"failed: {reason}")
        if age > FRESH_SECONDS:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"stale: the driver has not reported for {age:.0f} s")
        if report.observed.stalled:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"stalled: {report.observed.stalled}")
        return _text(HTTPStatus.OK, f"ok: {report.phase}, {report.percent:.2f} %")

    def _newest(self) -> Report | None:
        with self._changed:
            return self._report


def _asked(query: str, name: str) -> str:
    return parse_qs(query).get(name, [""])[-1]


def _grid(report: Report) -> str:
    """One letter per vnode."""
    return "".join(_LETTERS[vnode.phase] for vnode in report.vnodes)


def _tables(report: Report, wanted: str) -> dict[str, object]:
    """The tables whose names hold what is wanted: those that are not copied, then the largest; and how many they
    are."""
    found = [table for table in report.tables if wanted.lower() in table.name.lower()]
    lost = [table for table in found if table.phase in (JobPhase.FAILED, SET_ASIDE)]
    shown = [*lost, *(table for table in found if table not in lost)][:_TABLES_AT_ONCE]
    return {
        "tables": [table.to_json() for table in shown],
        "tables_found": len(found),
        "tables_total": len(report.tables),
        "tables_lost": sum(table.phase in (JobPhase.FAILED, SET_ASIDE) for table in report.tables),
    }


def _sample(sample: Sample) -> dict[str, object]:
    return {
        "at": round(sample.at, 3),
        "percent": sample.percent,
        "rows": sample.rows,
        "rows_per_second": sample.rows_per_second and round(sample.rows_per_second, 1),
        "lag_seconds": sample.lag_seconds and round(sample.lag_seconds, 3),
        "lag_bytes": sample.lag_bytes,
        "buffer_bytes": sample.buffer_bytes,
    }


def _json(text: str) -> Answer:
    return Answer(HTTPStatus.OK, _JSON, text.encode())


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, _TEXT, f"{text}\n".encode())
