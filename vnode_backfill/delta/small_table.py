"""Makes a small Delta table with its first rows, by one file and one commit, and reads one; without `deltalake`.

A job of many tables makes several such tables for each of them, and reads them when it is run again. `deltalake` takes
4 CPU-milliseconds for one. Whoever adds to the table later, or reads it, need not know how it was made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from uuid import uuid4

import pyarrow as pa

from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import FileReceipt
from vnode_backfill.delta.log.names import LOG
from vnode_backfill.delta.log.replay import newest
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.words.errors import OvertakenError

__all__ = ["make_small_table", "read_small_table"]


def make_small_table(storage: Storage, rows: pa.Table, configuration: Mapping[str, str], what: str) -> bool:
    """Make a table of these rows; False if there is one already, which is left as it is. `what` names it in messages."""
    import pyarrow.parquet as pq

    with storage_errors(f"{what} cannot be looked at in {storage.path}"):
        if storage.list_names(LOG):
            return False
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", compression_level=1, use_dictionary=False)
    log, file = DeltaLog(storage, "", what), f"part-{uuid4()}.parquet"
    receipt = FileReceipt(file, sink.tell(), rows.num_rows, json.dumps({"numRecords": rows.num_rows}))
    with storage_errors(f"{what} cannot be written to {storage.path}"):
        storage.make_folder()
        # A store that is refused would keep a file that nothing names.
        log.check_store()
        storage.write_unseen(file, sink.getvalue().to_pybytes())
    try:
        log.create(rows.schema, configuration, added=(receipt,))
    except OvertakenError:
        # Somebody else has made it meanwhile. Nothing names this file.
        with storage_errors(f"{what} cannot be written to {storage.path}"):
            storage.remove_file(file)
        return False
    return True


def read_small_table(storage: Storage, columns: Sequence[str] | None, what: str) -> pa.Table | None:
    """The rows of the newest version, in any order; None if there is no table, or its files need another reader."""
    import pyarrow.parquet as pq

    with storage_errors(f"{what} cannot be read from {storage.path}"):
        table = newest(storage, None)
        if table is None or any(file.vector or file.partition for file in table.files.values()):
            return None
        stored = table.schema
        schema = stored if columns is None else pa.schema([stored.field(name) for name in columns])
        parts = []
        for file in table.files.values():
            data = storage.read_whole(file.path)
            if data is None:
                return None
            parquet = pq.ParquetFile(pa.BufferReader(data))
            if parquet.schema_arrow.names != stored.names:
                return None
            parts.append(parquet.read(columns=schema.names, use_threads=False).cast(schema))
        return pa.concat_tables(parts) if parts else schema.empty_table()
