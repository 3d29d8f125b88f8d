"""Prints the newest cut of a job of many tables: one offset, and the version that each target had there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from progress.state.cut import Cut, Target
from vnode_backfill.commands.tables.asked import asked_names
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.writable import check_state_readable
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.tables.parts import tables_store
from vnode_backfill.words.errors import BackfillError, ConfigError, StateError


@dataclass(frozen=True, slots=True)
class Readable:
    """Until when a version can be read at least, if no other cut is made; None if it cannot be read any more.

    With `unknown` the target could not be looked at, for that reason.
    """

    until: datetime | None = None
    unknown: str = ""

    @property
    def words(self) -> str:
        if self.unknown:
            return f"cannot be looked at: {self.unknown}"
        if self.until is None:
            return "can no longer be read"
        until = self.until.isoformat(timespec="seconds")
        return f"until {until}" if self.until > datetime.now(UTC) else f"was kept until {until}, and may go at any time"


def cut(config: Config, *, as_json: bool, only: Sequence[str] = ()) -> int:
    """Print the newest cut, or what it says of the tables that `only` means; works whether a driver runs or not."""
    if not config.many:
        raise ConfigError(
            "cut is for a job of many tables: the target of one table is always a cut",
            hint="`vnode-backfill status` shows the offset that is applied.",
        )
    stored = tables_store(config).cut()
    if stored is None:
        check_state_readable(config)
        raise StateError(
            f"job {config.job} has no cut yet",
            hint="One is made when the job stops with a live table, and every epoch.cut if that is set.",
        )
    found = _of_tables(Cut.from_json(stored), only)
    readable = {name: _readable(config, found, target) for name, target in found.targets.items()}
    print(json.dumps(_document(found, readable)) if as_json else "\n".join(_lines(found, readable)))
    return 0


def _of_tables(found: Cut, only: Sequence[str]) -> Cut:
    names = asked_names({*found.targets, *found.left_out}, only, holder="the newest cut")
    return replace(
        found,
        targets={name: target for name, target in found.targets.items() if name in names},
        left_out={name: reason for name, reason in found.left_out.items() if name in names},
    )


def _readable(config: Config, found: Cut, target: Target) -> Readable | None:
    """None where the target has no versions."""
    if target.version is None:
        return None
    try:
        until = configured_sink(config).readable_until(target.sink, target.version)
    except BackfillError as error:
        return Readable(unknown=error.message)
    return Readable(None if until is None else max(until, found.at + config.cut_kept_for))


def _document(found: Cut, readable: Mapping[str, Readable | None]) -> dict[str, object]:
    return {
        "version": 1,
        "offset": str(found.offset),
        "gtids": found.offset.gtids,
        "at": found.at.isoformat(),
        "tables": [
            {"name": name, "target": target.sink, "version": target.version, **_told(readable[name])}
            for name, target in sorted(found.targets.items())
        ],
        "left_out": [{"name": name, "reason": reason} for name, reason in sorted(found.left_out.items())],
    }


def _told(readable: Readable | None) -> dict[str, object]:
    if readable is None or readable.unknown:
        return {"readable": None, "readable_until": None}
    until = readable.until
    return {"readable": until is not None, "readable_until": None if until is None else until.isoformat()}


def _lines(found: Cut, readable: Mapping[str, Readable | None]) -> list[str]:
    width = max((len(name) for name in found.targets), default=0)
    wide = max((len(target.sink) for target in found.targets.values()), default=0)
    numbers = {name: "-" if target.version is None else str(target.version) for name, target in found.targets.items()}
    digits = max(map(len, numbers.values()), default=1)
    words = {name: "" if each is None else each.words for name, each in readable.items()}
    return [
        f"offset   {found.offset} at {found.at.isoformat()}",
        *(
            f"version  {numbers[name]:>{digits}}  {name:{width}}  {target.sink:{wide}}  {words[name]}".rstrip()
            for name, target in sorted(found.targets.items())
        ),
        *(f"left out {'':{digits}}  {name}: {reason}" for name, reason in sorted(found.left_out.items())),
    ]
