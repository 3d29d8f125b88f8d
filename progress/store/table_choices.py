"""Keeps what operators have added to the tables of a job, and taken away: a row for each, in the job's `choices` table.

The job's file says which tables a job has; a row here counts before the file. It is not a request that is done once and
acknowledged, but what is to hold from then on. So nothing has to be remembered about it: a driver compares what it
copies with the file and these rows, whenever it looks, and a crash between the two changes nothing.

    table        wanted   priority
    crm.notes    yes      5            added: the file need not name it
    shop.items   no                    removed: also where a pattern, or an entry of the file, means it

Each write replaces the whole table, on top of the version just read, as requests do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from progress.store.state_table import StateTable
from vnode_backfill.words.errors import BuriedError, OvertakenError, StateError

__all__ = ["CHOICE_SCHEMA", "TableChoice", "TableChoices"]

CHOICE_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("wanted", pa.bool_(), nullable=False),
        ("priority", pa.int64()),
        ("who", pa.string()),
        ("host", pa.string()),
        ("asked_at", pa.timestamp("us", tz="UTC")),
        ("folded", pa.bool_()),
    ]
)
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class TableChoice:
    """One table that was added or removed, by whom and when. `priority` None is that of the file.

    `folded` says that the file may spell it otherwise, because names are the same to the server whatever their case.
    """

    table: str
    wanted: bool
    who: str
    host: str
    asked_at: datetime
    priority: int | None = None
    folded: bool = False


class TableChoices:
    """The choices of one job, for its driver and for those who make them."""

    def __init__(self, rows: StateTable) -> None:
        self._rows = rows

    def all(self) -> tuple[TableChoice, ...]:
        """Every choice, by the name of its table."""
        return _read(self._rows.read(self._rows.open()))

    def since(self, version: int) -> tuple[int, tuple[TableChoice, ...] | None]:
        """The newest version, and the choices if that is another one than `version`."""
        handle = self._rows.open()
        newest = -1 if handle is None else handle.version()
        return newest, None if newest == version else _read(self._rows.read(handle))

    def choose(self, new: Sequence[TableChoice], forget: Collection[str] = ()) -> None:
        """Store these in place of what was chosen for their tables; `forget` leaves tables to the file again."""
        gone = {*forget, *(choice.table for choice in new)}
        for _ in range(_ATTEMPTS):
            handle = self._rows.open()
            kept = [choice for choice in _read(self._rows.read(handle)) if choice.table not in gone]
            try:
                written = self._rows.replace(handle, _to_rows([*kept, *new]))
            except BuriedError:
                return  # the next writer has read it and kept it
            except OvertakenError:
                continue
            self._rows.tidy_sometimes(written)
            return
        raise StateError("the choice of tables could not be written", detail="Others keep writing choices.")

    def drop(self) -> None:
        self._rows.discard_rows(all_rows=True)


def _read(rows: pa.Table) -> tuple[TableChoice, ...]:
    found = [TableChoice(**{name: row[name] for name in CHOICE_SCHEMA.names}) for row in rows.to_pylist()]
    return tuple(sorted(found, key=lambda choice: choice.table))


def _to_rows(choices: Sequence[TableChoice]) -> pa.Table:
    rows = [{name: getattr(choice, name) for name in CHOICE_SCHEMA.names} for choice in choices]
    return pa.Table.from_pylist(rows, schema=CHOICE_SCHEMA)
