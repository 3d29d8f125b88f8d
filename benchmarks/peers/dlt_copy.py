"""Copies a table with dlt and connectorx into a Delta table, in dlt's own environment: this file imports nothing of ours.

It is one SELECT into memory: no offset, no capture of changes, nothing to resume from. What is copied is a ceiling of
speed and not a system that does the same. connectorx reads an unsigned BIGINT as a type that Delta has not, so that
column is cast.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args(argv)
    import dlt
    import pyarrow as pa
    from dlt.sources.sql_database import sql_table

    def without_unsigned(rows: pa.Table) -> pa.Table:
        fields = [
            pa.field(field.name, pa.decimal128(20, 0)) if pa.types.is_uint64(field.type) else field
            for field in rows.schema
        ]
        return rows.cast(pa.schema(fields))

    began = time.monotonic()
    address = f"root@127.0.0.1:{arguments.port}/{arguments.database}"
    resource = sql_table(
        credentials=f"mysql+pymysql://{address}", table=arguments.table, backend="connectorx",
        reflection_level="minimal", backend_kwargs={"conn": f"mysql://{address}"},
    ).add_map(without_unsigned)  # fmt: skip
    pipeline = dlt.pipeline(
        "peer", pipelines_dir=str(arguments.folder / "pipeline"), dataset_name="lake",
        destination=dlt.destinations.filesystem(bucket_url=arguments.folder.resolve().as_uri()),
    )  # fmt: skip
    pipeline.run(resource, table_format="delta", write_disposition="append")
    print(json.dumps({"seconds": time.monotonic() - began}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
