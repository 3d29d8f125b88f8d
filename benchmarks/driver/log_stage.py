"""The case `log`: the log stage of an epoch for 1, 10 and 100 tables that share the same changes.

The log stage is what a driver does from the first byte of a stretch of the log until every table has its changes in its
buffer: read, decode, mark, write, commit. The driver's own function does it here, in this process, on a real server's
log. So nothing else is in the figure: no table is opened or merged meanwhile. The same number of rows is updated in 1,
10 and 100 tables of ten columns, in statements of 100 rows.

What a table costs is fixed, so the ratio depends on how many changes each has: `_READS` has a short stretch, as an
epoch of a live job has it, and a long one, as after a stop. Each is read in turns, and the best of the rounds counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.results import Figure, figure
from benchmarks.source import DATABASE, Source
from consume_upstream.buffer import BufferNote, ChangeBuffer
from consume_upstream.executor import ConsumeOrder, UpstreamTableExecutor, consume_together
from consume_upstream.log.offset import CdcOffset, VisibleAt
from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.table import MySqlTable
from progress.state.backfill_state import Intent, new_state
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.key_range import plan_of

_CASE = "log"
_TABLES = (1, 10, 100)
_ROWS, _ROWS_EACH = 20_000, 100
_READS = {"an epoch": 40_000, "a backlog": 1_000_000}
_MEMORY = 256 * 1024 * 1024
_VNODES = 256


@dataclass(frozen=True, slots=True)
class _Written:
    """A stretch of the log with the changes of some tables."""

    tables: Sequence[MySqlTable]
    after: CdcOffset
    upto: CdcOffset


def log_stage(bench: Bench) -> list[Figure]:
    """CPU-microseconds per change, and against one table."""
    bench.source.create_table("log_0", _ROWS)
    for number in range(1, max(_TABLES)):
        bench.source.split_table(f"log_{number}", "log_0", 0, _ROWS)
    figures = []
    for name, changes in _READS.items():
        written = [_write(bench.source, tables, changes) for tables in _TABLES]
        rounds = [[_consumed(each, bench.folder, changes) for each in written] for _ in range(bench.rounds)]
        best = [min(times) for times in zip(*rounds, strict=True)]
        for tables, cpu in zip(_TABLES, best, strict=True):
            of = f"{name}, {changes:,} changes of {tables}"
            figures.append(figure(_CASE, of, [1e6 * cpu / changes], "CPU-µs/change"))
            if tables != _TABLES[0]:
                figures.append(figure(_CASE, f"{of}: against one", [cpu / best[0]], "×", goal="< 1.2"))
    return figures


def _write(source: Source, tables: int, changes: int) -> _Written:
    server = source.server
    address = SourceAddress(server.host, server.port, server.user, server.password)
    opened = [MySqlTable.open(address, DATABASE, f"log_{number}") for number in range(tables)]
    after = opened[0].written_offset()
    source.execute(*(_update(number, tables) for number in range(changes // _ROWS_EACH)))
    return _Written(opened, after, opened[0].written_offset())


def _update(number: int, tables: int) -> str:
    first = number // tables * _ROWS_EACH % _ROWS
    return f"UPDATE log_{number % tables} SET score = score + 1 WHERE id > {first} AND id <= {first + _ROWS_EACH}"


_numbers = count()


def _consumed(written: _Written, folder: Path, changes: int) -> float:
    """CPU-seconds of one reading into new buffers, of this whole process."""
    into = folder / f"log-{next(_numbers)}"
    orders = [_order(table, into, written) for table in written.tables]
    began = time.process_time()
    notes = consume_together(None, orders)
    spent = time.process_time() - began
    kept = sum(note.kept for note in notes if isinstance(note, BufferNote))
    if kept != changes:
        raise AssertionError(f"{kept} changes were buffered, not {changes}")
    return spent


def _order(table: MySqlTable, folder: Path, written: _Written) -> ConsumeOrder:
    """A table without ranges, so that every change is kept."""
    buffer = ChangeBuffer(str(folder / table.definition.table), table.definition, "bench")
    buffer.prepare()
    plan = plan_of(table.definition.key_parts, (), _VNODES)
    state = new_state(VisibleAt(written.after), plan, split_evenly(_VNODES, 4))
    intent = Intent(Epoch(1), BarrierKind.CHECKPOINT, written.upto, VisibleAt(written.upto), ((),), 0)
    executor = UpstreamTableExecutor(table, buffer, readers=2, memory=_MEMORY)
    return ConsumeOrder(executor, state, plan, intent, may_have_landed=False)
