"""Notes what every Spark partition of a running job writes of its ranges: the rows' keys, beside the real write.

The notes are made inside the tasks, with the number that Spark gives the partition. So they show where the product's
lanes really ran, and nothing in them is taken from the plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext

from vnode_backfill.sinks import RangeWriter, ReadReceipt
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.epoch import Epoch


@dataclass(frozen=True, slots=True)
class Noted:
    """One range that was written: in which epoch, by which of the job's Spark partitions, and the keys of its rows."""

    epoch: int
    ordinal: int
    partition: int
    keys: list[int]


@dataclass(frozen=True, slots=True)
class NotingWriter:
    """Writes as the sink's own writer does, and appends a line to `notes` for each range."""

    writer: RangeWriter
    notes: Path

    def write(self, epoch: Epoch, ordinal: int, attempt: int, batches: Iterable[pa.RecordBatch]) -> ReadReceipt:
        keys: list[int] = []
        receipt = self.writer.write(epoch, ordinal, attempt, _kept(batches, keys))
        task = TaskContext.get()
        assert task is not None, "a range was read outside Spark"
        with self.notes.open("a") as file:
            file.write(json.dumps(asdict(Noted(epoch, ordinal, task.partitionId(), keys))) + "\n")
        return receipt


def _kept(batches: Iterable[pa.RecordBatch], keys: list[int]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys += batch.column("id").to_pylist()
        yield batch


def note_reads(monkeypatch: pytest.MonkeyPatch, notes: Path) -> None:
    """Let every Delta sink of this process write through a `NotingWriter`."""
    plain = DeltaSink.writer
    monkeypatch.setattr(DeltaSink, "writer", lambda sink: NotingWriter(plain(sink), notes))


def noted(notes: Path) -> list[Noted]:
    return [Noted(**json.loads(line)) for line in notes.read_text().splitlines()]
