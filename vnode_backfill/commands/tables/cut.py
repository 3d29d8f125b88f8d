"""Prints the newest cut of a job of many tables: one offset, and the version that each target had there."""

from __future__ import annotations

import json

from progress.state.cut import Cut
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.writable import check_state_readable
from vnode_backfill.job.tables.parts import tables_store
from vnode_backfill.words.errors import ConfigError, StateError


def cut(config: Config, *, as_json: bool) -> int:
    """Print the newest cut; works whether a driver runs or not."""
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
    found = Cut.from_json(stored)
    print(json.dumps(_document(found)) if as_json else "\n".join(_lines(found)))
    return 0


def _document(found: Cut) -> dict[str, object]:
    return {
        "version": 1,
        "offset": str(found.offset),
        "gtids": found.offset.gtids,
        "at": found.at.isoformat(),
        "tables": [
            {"name": name, "target": target.sink, "version": target.version}
            for name, target in sorted(found.targets.items())
        ],
        "left_out": [{"name": name, "reason": reason} for name, reason in sorted(found.left_out.items())],
    }


def _lines(found: Cut) -> list[str]:
    width = max((len(name) for name in found.targets), default=0)
    numbers = {name: "-" if target.version is None else str(target.version) for name, target in found.targets.items()}
    digits = max(map(len, numbers.values()), default=1)
    return [
        f"offset   {found.offset} at {found.at.isoformat()}",
        *(
            f"version  {numbers[name]:>{digits}}  {name:{width}}  {target.sink}"
            for name, target in sorted(found.targets.items())
        ),
        *(f"left out {'':{digits}}  {name}: {reason}" for name, reason in sorted(found.left_out.items())),
    ]
