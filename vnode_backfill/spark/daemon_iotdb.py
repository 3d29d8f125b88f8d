"""Runs `daemon` for jobs into IoTDB.

The server's client and what tasks write points with are loaded before the first fork too.
"""

from __future__ import annotations

from vnode_backfill.spark.daemon import main

if __name__ == "__main__":
    main("vnode_backfill.sinks.iotdb.sink")
