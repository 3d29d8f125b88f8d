"""Compares source and target of many tables side by side: a line per table, and a total.

Together the tables use as many connections, and read as many rows a second, as a comparison of one table may. The
connections are divided among those that are compared at the same time, and the rows are paid from one account
(`verify.pace`). A table that cannot be compared is not equal, and keeps no other from being compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from progress.state.tables_report import reason_of
from vnode_backfill.commands.tables.asked import asked_names, held_names, part_of, stored_tables
from vnode_backfill.config.job import Config
from vnode_backfill.job.sink.description import Verdict
from vnode_backfill.words.errors import BackfillError

if TYPE_CHECKING:
    from vnode_backfill.verify.tasks import TaskRunner

__all__ = ["CompareTable", "OpenTasks", "compare_tables", "verify_tables"]

OpenTasks = Callable[[], AbstractContextManager["TaskRunner"]]
CompareTable = Callable[[Config, OpenTasks], Verdict]
_COUNTS = ("rows_source", "rows_target", "rows_compared", "ranges", "total", "missing", "extra", "different")


@dataclass(frozen=True, slots=True)
class _Compared:
    """One table, and what its comparison found; an error is why there was none."""

    name: str
    found: Verdict | BackfillError

    @property
    def equal(self) -> bool:
        return isinstance(self.found, Verdict) and self.found.equal

    def lines(self) -> Iterator[str]:
        if isinstance(self.found, Verdict):
            yield from (f"{self.name}: {line}" for line in self.found.text.splitlines())
        else:
            yield f"{self.name}: not compared: {self.found}"

    def to_json(self) -> dict[str, object]:
        if isinstance(self.found, Verdict):
            return {"table": self.name, "error": "", **json.loads(self.found.json)}
        return {"table": self.name, "error": self.found.message, "equal": False}


Say = Callable[[_Compared], None]


def verify_tables(
    config: Config, only: Sequence[str], *, tasks: OpenTasks, compare: CompareTable, as_json: bool
) -> int:
    """Compare every table that is meant; exit code 1 if one differs or could not be compared."""
    verdict = compare_tables(config, only, tasks=tasks, compare=compare, say=_silent if as_json else _said)
    print(verdict.json if as_json else verdict.text.splitlines()[-1])
    return 0 if verdict.equal else 1


def compare_tables(
    config: Config, only: Sequence[str], *, tasks: OpenTasks, compare: CompareTable, say: Say | None = None
) -> Verdict:
    """Compare every table that is meant; `say` hears of each when it is done. The last line of the text is the
    total."""
    say = say or _silent
    store = stored_tables(config)
    aside = store.aside()
    names = asked_names(held_names(store), only)
    found = [_Compared(name, BackfillError(f"set aside: {reason_of(aside[name])}")) for name in names if name in aside]
    for each in found:
        say(each)
    with tasks() as runner:
        for each in _side_by_side(config, [name for name in names if name not in aside], runner, compare):
            say(each)
            found.append(each)
    lines = [line for each in found for line in each.lines()]
    return Verdict(all(each.equal for each in found), "\n".join([*lines, _total(found)]), json.dumps(_document(found)))


def _said(compared: _Compared) -> None:
    print("\n".join(compared.lines()), flush=True)


def _silent(_: _Compared) -> None:
    """The document comes at the end."""


def _side_by_side(
    config: Config, names: Sequence[str], runner: TaskRunner, compare: CompareTable
) -> Iterator[_Compared]:
    """In the order of their names, each as soon as it and those before it are done."""
    at_once = max(1, min(config.workers, len(names)))
    shared = _share_of(config, at_once)

    def one(name: str) -> _Compared:
        try:
            return _Compared(name, compare(part_of(shared, name), lambda: nullcontext(runner)))
        except BackfillError as error:
            return _Compared(name, error)

    with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="verify") as pool:
        yield from pool.map(one, names)


def _share_of(config: Config, at_once: int) -> Config:
    """How many connections one of so many comparisons may use."""
    return config.model_copy(update={"workers": max(1, config.workers // at_once)})


def _document(found: Sequence[_Compared]) -> dict[str, object]:
    tables = [each.to_json() for each in found]
    totals = {name: sum(_whole(table.get(name)) for table in tables) for name in _COUNTS}
    totals["rows_compared"] = sum(map(_rows_compared, tables))
    equal = all(each.equal for each in found)
    return {"version": 1, "equal": equal, **totals, "not_compared": _failed(found), "tables": tables}


def _rows_compared(table: Mapping[str, object]) -> int:
    """Rows of both sides. Points are not rows: of IoTDB it is the rows of the source that are not missing."""
    if "rows_compared" in table:
        return _whole(table["rows_compared"])
    return _whole(table.get("rows_source")) - _whole(table.get("missing"))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _failed(found: Sequence[_Compared]) -> int:
    return sum(isinstance(each.found, BackfillError) for each in found)


def _total(found: Sequence[_Compared]) -> str:
    counted = _document(found)
    what = f"{counted['rows_compared']:,} rows in {len(found):,} tables, {counted['total']:,} differences"
    if failed := _failed(found):
        what += f", {failed:,} tables not compared"
    return f"{'verified' if counted['equal'] else 'compared'}: {what}"
