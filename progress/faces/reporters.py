"""Defines a reporter: anything with `show` and `close`, which gets a report on the job a few times a second.

The job has one `Reporter`, which is usually several (`Reporters`): the terminal, the web page, the metrics, and what a
user has added. A package adds one by an entry point. The entry point names a class or function that is called without
arguments and returns a reporter:

    [project.entry-points."vnode_backfill.reporters"]
    pager = "our_pager.backfill:PagerReporter"

A reporter only watches. One that cannot be loaded is refused before the job starts (exit code 2). One that raises
later is left out, with a warning in the log, and the job continues: a pager that is down must not stop a copy.

Two reporters turn reports into events in the words of RisingWave's progress, for tools that know those. An entry point
that names one of them writes the events to the log. A package that wants them elsewhere offers a function that returns
one with its own `tell`:

    rows = "progress.faces.reporters:CreateMviewProgressReporter"
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, runtime_checkable

from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress
from progress.state.report import Report
from vnode_backfill.words.epoch import Actor, Epoch
from vnode_backfill.words.errors import ConfigError

ENTRY_POINT_GROUP = "vnode_backfill.reporters"
_log = logging.getLogger(__name__)


@runtime_checkable
class Reporter(Protocol):
    """Is shown a report a few times a second, from one thread, and closed once; `show` must return quickly."""

    def show(self, report: Report) -> None: ...

    def close(self) -> None: ...


class NullReporter:
    """Shows nothing."""

    def show(self, report: Report) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Reporters:
    """Several as one, called in the order given. One that raises is closed and left out from then on."""

    def __init__(self, reporters: Iterable[Reporter]) -> None:
        self._reporters = list(reporters)

    def show(self, report: Report) -> None:
        for reporter in tuple(self._reporters):
            if not _survives(reporter, lambda each: each.show(report)):
                self._reporters.remove(reporter)
                _survives(reporter, lambda each: each.close())

    def close(self) -> None:
        """Close each one, whatever the others do. A second call does nothing."""
        while self._reporters:
            _survives(self._reporters.pop(0), lambda each: each.close())


def load_reporters(found: Iterable[EntryPoint] | None = None) -> tuple[Reporter, ...]:
    """The reporters that installed packages offer, by name."""
    offered = entry_points(group=ENTRY_POINT_GROUP) if found is None else found
    return tuple(_load(each) for each in sorted(offered, key=lambda each: each.name))


class CreateMviewProgressReporter:
    """Reports how many rows and changes each actor has handled in the epoch in progress, whenever that changes."""

    def __init__(self, tell: Callable[[CreateMviewProgress], None] | None = None) -> None:
        self._tell = tell or _log_rows
        self._told: dict[Actor, CreateMviewProgress] = {}

    def show(self, report: Report) -> None:
        seen, epoch = report.observed.in_hand, Epoch(report.epoch + 1)
        for actor, rows in (
            (Actor.SNAPSHOT, seen.rows), (Actor.UPSTREAM, seen.captured), (Actor.MERGE, seen.merged),
        ):  # fmt: skip
            progress = CreateMviewProgress(actor, epoch, rows)
            if rows and progress != self._told.get(actor):
                self._told[actor] = progress
                self._tell(progress)

    def close(self) -> None:
        """Nothing is held open."""


class CdcTableBackfillProgressReporter:
    """Reports how many ranges and rows the job has read, the epoch in progress included; never fewer than before."""

    def __init__(self, tell: Callable[[CdcTableBackfillProgress], None] | None = None) -> None:
        self._tell = tell or _log_ranges
        self._told: CdcTableBackfillProgress | None = None

    def show(self, report: Report) -> None:
        seen, told = report.observed.in_hand, self._told
        ranges, rows = report.ranges + seen.ranges, report.rows + seen.rows
        progress = CdcTableBackfillProgress(report.epoch, ranges, report.ranges_total, rows)
        if progress != told and (told is None or rows >= told.rows):
            self._told = progress
            self._tell(progress)

    def close(self) -> None:
        """Nothing is held open."""


def _log_rows(progress: CreateMviewProgress) -> None:
    _log.info("create mview progress actor=%s epoch=%d rows=%d", progress.actor, progress.epoch, progress.rows)


def _log_ranges(progress: CdcTableBackfillProgress) -> None:
    ranges, total = progress.ranges_done, progress.ranges_total
    _log.info(
        "cdc table backfill progress epoch=%d ranges=%d of=%d rows=%d", progress.epoch, ranges, total, progress.rows
    )


def _load(offered: EntryPoint) -> Reporter:
    try:
        reporter = offered.load()()
    except Exception as error:
        raise ConfigError(
            f"reporter {offered.name} of entry point group {ENTRY_POINT_GROUP} cannot be loaded",
            detail=f"{offered.value}: {type(error).__name__}: {error}",
            hint="Repair or uninstall the package that offers it.",
        ) from error
    if not isinstance(reporter, Reporter):
        raise ConfigError(
            f"reporter {offered.name} of entry point group {ENTRY_POINT_GROUP} is none",
            detail=f"{offered.value} returned a {type(reporter).__name__}, which lacks show or close.",
            hint="Repair or uninstall the package that offers it.",
        )
    return reporter


def _survives(reporter: Reporter, act: Callable[[Reporter], None]) -> bool:
    try:
        act(reporter)
    except Exception:  # noqa: BLE001 - somebody else's code, which only watches
        _log.warning("reporter failed and is left out reporter=%s", type(reporter).__name__, exc_info=True)
        return False
    return True
