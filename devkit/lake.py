"""Reads Delta tables as a user's tools do, through deletion vectors: by the query engine of `deltalake`.

Its `to_pyarrow_table` and `to_pandas` refuse tables with vectors, and its `count` does not see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def read_lake(
    path: Path | str, columns: Sequence[str] | None = None, *, options: Mapping[str, str] | None = None
) -> pa.Table:
    """The rows of the newest version, in the types of the table's schema; `options` log into an object store."""
    table = DeltaTable(str(path), storage_options=dict(options or {}))
    batches = list(read_batches(table, columns))
    return pa.Table.from_batches(batches, _schema(table, columns))


def count_lake(path: Path | str) -> int:
    """How many rows a reader sees."""
    return int(read_lake(path, ()).num_rows)


def read_batches(table: DeltaTable, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    schema = _schema(table, columns)
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.names)
    for batch in QueryBuilder().register("lake", table).execute(f"SELECT {quoted} FROM lake"):
        yield pa.record_batch(batch).cast(schema)


def _schema(table: DeltaTable, columns: Sequence[str] | None) -> pa.Schema:
    """The named columns; where none is named the first one, for those who only count."""
    whole = pa.schema(table.schema().to_arrow())
    names = whole.names if columns is None else list(columns) or whole.names[:1]
    return pa.schema([whole.field(name) for name in names])
