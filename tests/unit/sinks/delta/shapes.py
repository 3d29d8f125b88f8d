"""Tables of shapes that change, as a sink is told of them and as other readers see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from devkit.lake import read_lake
from tests.tables import Cell, plan, table_of
from vnode_backfill.config.job import MergeMode
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OP, ChangeOp
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.schema_change import Carried, ColumnStep, TableShape

Cells = Mapping[str, Cell]
ITEMS = table_of({"id": "int", "name": "varchar(20)", "count": "int", "price": "float"}, "id")


def column(name: str, kind: str) -> Column:
    return Column.parse(name, kind, nullable=True)


def carried(
    shape: TableShape, columns: Mapping[str, str], *steps: ColumnStep, keep: bool = True, key: Sequence[str] = ("id",)
) -> TableShape:
    """The shape after a statement that leaves these columns."""
    return shape.after(Carried(table_of(columns, *key), steps), keep_dropped=keep)


def items(folder: Path, mode: MergeMode = MergeMode.VECTORS, definition: TableDefinition = ITEMS) -> DeltaSink:
    sink = DeltaSink(
        str(folder / "target"), definition, "job", creates=mode, key_cache=0, target_file_size=20_000, generation=1
    )
    sink.prepare()
    return sink


def rows(definition: TableDefinition, given: Sequence[Cells]) -> pa.RecordBatch:
    schema = definition.arrow_schema
    return pa.RecordBatch.from_arrays([pa.array([r[f.name] for r in given], f.type) for f in schema], schema=schema)


def read(sink: DeltaSink, epoch: int, definition: TableDefinition, *given: Cells) -> None:
    """One range of an epoch, in one file."""
    receipt = sink.writer().write(Epoch(epoch), 0, 0, [rows(definition, given)])
    sink.commit_reads(Epoch(epoch), [receipt], [], NO_PLAN)


def merge(
    sink: DeltaSink, epoch: int, definition: TableDefinition, *given: Cells, delete: Sequence[Cells] = ()
) -> None:
    """Upserts and deletes; of a deleted row the key counts."""
    gone = [{**dict.fromkeys(definition.arrow_schema.names), **each} for each in delete]
    table = pa.Table.from_batches([rows(definition, [*given, *gone])])
    ops = [ChangeOp.UPDATE] * len(given) + [ChangeOp.DELETE] * len(gone)
    sink.apply(Epoch(epoch), MemoryChanges(table.append_column(OP, pa.array(ops, pa.int8())), definition.key))


def lake(sink_folder: Path, *, by: str = "id") -> list[dict[str, Cell]]:
    """The rows as deltalake reads them, by their key."""
    found: list[dict[str, Cell]] = read_lake(str(sink_folder / "target")).to_pylist()
    return sorted(found, key=lambda row: repr(row[by]).zfill(20))


NO_PLAN = plan(ITEMS)
