"""Makes Delta tables for tests: logs of our own, and random logs as other writers leave them behind."""

from __future__ import annotations

import base64
import json
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile, DeletionVector, FileReceipt
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.storage import Storage
from vnode_backfill.words.epoch import Epoch

SCHEMA = pa.schema({"id": pa.int64(), "at": pa.timestamp("us"), "price": pa.decimal128(30, 10)})
VECTORS = frozenset({"deletionVectors"})
SCHEMA_TEXT = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (
                ("id", "long"), ("small", "byte"), ("price", "decimal(38,10)"), ("ratio", "double"), ("single", "float"),
                ("name", "string"), ("day", "date"), ("at", "timestamp"), ("local", "timestamp_ntz"), ("raw", "binary"),
            )
        ],
    }
)  # fmt: skip
_Z85 = bytes.maketrans(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)


def log_at(folder: Path, *, generation: int = 0, job: str = "job") -> DeltaLog:
    return DeltaLog(Storage.of(str(folder)), job, "the table", generation)


def new_table(folder: Path, *, vectors: bool = False, interval: int = 1000) -> tuple[DeltaLog, TableVersion]:
    log = log_at(folder)
    properties = {"delta.checkpointInterval": str(interval), "delta.enableDeletionVectors": str(vectors).lower()}
    return log, log.create(SCHEMA, properties, features=VECTORS if vectors else frozenset())


def receipt(name: str, low: int = 0, high: int = 9) -> FileReceipt:
    stats = f'{{"numRecords":10,"minValues":{{"id":{low},"price":1.10}},"maxValues":{{"id":{high}}},"nullCount":{{}}}}'
    return FileReceipt(f"{name}.parquet", 100, 10, stats)


def vector(number: uuid.UUID | None = None, *, folder: str = "_dv", offset: int = 1, rows: int = 2) -> DeletionVector:
    encoded = base64.b85encode((number or uuid.uuid4()).bytes).translate(_Z85).decode()
    return DeletionVector("u", folder + encoded, offset, 40, rows)


def named(files: Sequence[DataFile], name: str) -> DataFile:
    (found,) = (file for file in files if file.path == f"{name}.parquet")
    return found


def commits(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def actions(folder: Path, version: int) -> list[dict[str, dict[str, object]]]:
    text = (folder / "_delta_log" / f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.split("\n") if line]


def append_epochs(log: DeltaLog, epochs: Sequence[int]) -> TableVersion:
    table = log.open()
    for epoch in epochs:
        table = log.commit(table, "append", Epoch(epoch), [receipt(f"e{epoch}")], note=f"note {epoch}")
    return table


@dataclass
class RandomLog:
    """A log that grows at random, as Spark or another writer would leave it."""

    folder: Path
    random: Random
    version: int = -1
    live: list[dict[str, object]] = field(default_factory=list)
    files: int = 0

    def grow(self) -> None:
        self.version += 1
        lines: list[dict[str, object]] = [{"commitInfo": {"timestamp": self.version, "operation": "WRITE"}}]
        if self.version == 0:
            lines += [self._protocol(), self._metadata()]
        elif self.random.random() < 0.05:
            lines.append(self._metadata())
        if self.random.random() < 0.5:
            app = f"job-{self.random.randrange(3)}/append"
            lines.append({"txn": {"appId": app, "version": self.random.randrange(100), "lastUpdated": 5}})
        lines += self._removed() + self._masked() + [self._added() for _ in range(self.random.randrange(4))]
        self.random.shuffle(lines)
        path = self.folder / "_delta_log" / f"{self.version:020d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))

    def checkpoint(self) -> None:
        """By `deltalake`; at random in several files, without the hint, with a stale or a broken one."""
        hint = self.folder / "_delta_log" / "_last_checkpoint"
        before = hint.read_bytes() if hint.exists() else None
        DeltaTable(self.folder).create_checkpoint()
        if self.random.random() < 0.3:
            self._split_checkpoint(self.random.randrange(2, 5))
        match self.random.randrange(6):
            case 0:
                hint.unlink()
            case 1 if before is not None:
                hint.write_bytes(before)
            case 2:
                hint.write_bytes(self.random.choice([b"", b"{", b"[]", b'{"version":"x"}', b'{"version":99999}']))
        if self.random.random() < 0.3:
            for old in range(self.random.randrange(self.version + 1)):
                (self.folder / "_delta_log" / f"{old:020d}.json").unlink(missing_ok=True)
        self._incomplete_checkpoint()

    def _split_checkpoint(self, parts: int) -> None:
        whole = self.folder / "_delta_log" / f"{self.version:020d}.checkpoint.parquet"
        table = pq.read_table(whole)
        for part in range(parts):
            # A part may be empty: a list without numbers has no type that rows could be taken by.
            rows = table.take(pa.array([row for row in range(len(table)) if row % parts == part], pa.int64()))
            name = f"{self.version:020d}.checkpoint.{part + 1:010d}.{parts:010d}.parquet"
            pq.write_table(rows, whole.with_name(name))
        whole.unlink()
        hint = {"version": self.version, "size": len(table), "parts": parts}
        whole.with_name("_last_checkpoint").write_text(json.dumps(hint))

    def _incomplete_checkpoint(self) -> None:
        """One part of three of a checkpoint that nobody finished."""
        if self.version > 3 and self.random.random() < 0.2:
            name = f"{self.version - 1:020d}.checkpoint.0000000001.0000000003.parquet"
            (self.folder / "_delta_log" / name).write_bytes(b"unfinished")

    def _added(self) -> dict[str, object]:
        self.files += 1
        name = self.random.choice(["part-{}.parquet", "d%20e-{}.parquet", "sub/ü-{}.parquet"]).format(self.files)
        action: dict[str, object] = {
            "path": name, "partitionValues": {}, "size": self.random.randrange(1 << 40), "modificationTime": 7,
            "dataChange": True,
        }  # fmt: skip
        if self.random.random() < 0.9:
            action["stats"] = self._statistics()
        self.live.append(action)
        return {"add": action}

    def _removed(self) -> list[dict[str, object]]:
        gone = self.random.sample(self.live, self.random.randrange(len(self.live) // 3 + 1))
        self.live = [each for each in self.live if each not in gone]
        return [{"remove": self._tombstone(each)} for each in gone]

    def _masked(self) -> list[dict[str, object]]:
        lines: list[dict[str, object]] = []
        for each in self.random.sample(self.live, self.random.randrange(len(self.live) // 3 + 1)):
            number = uuid.UUID(int=self.random.getrandbits(128))
            masked = {**each, "deletionVector": vector(number, rows=self.random.randrange(1, 10)).to_action()}
            self.live[self.live.index(each)] = masked
            lines += [{"remove": self._tombstone(each)}, {"add": masked}]
        return lines

    def _tombstone(self, added: dict[str, object]) -> dict[str, object]:
        kept = {name: value for name, value in added.items() if name in ("path", "deletionVector")}
        return {**kept, "deletionTimestamp": 1 << 50, "dataChange": True}

    def _statistics(self) -> str:
        number, day = self.random.randrange(-(1 << 50), 1 << 50), self.random.randrange(1, 28)
        low = (
            f'{{"id":{number},"small":-5,"price":{number}.0123456789,"ratio":0.1,"single":0.5,"name":"a\\u00e4\\"\u2028",'
            f'"day":"1999-02-{day:02d}","at":"2024-02-{day:02d}T01:02:03.004Z","local":"2024-02-{day:02d}T01:02:03.004"}}'
        )
        high = f'{{"id":{number + 5},"ratio":1e300,"single":1.5,"name":"zz","at":"9999-12-31T23:59:59.999Z"}}'
        return f'{{"numRecords":{day},"minValues":{low},"maxValues":{high},"nullCount":{{"id":0}}}}'

    def _protocol(self) -> dict[str, object]:
        features = ["deletionVectors", "timestampNtz"]
        names = {"readerFeatures": features, "writerFeatures": features}
        return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **names}}

    def _metadata(self) -> dict[str, object]:
        configuration = {
            "delta.enableDeletionVectors": "true",
            "delta.checkpointInterval": "1000",
            "x": str(self.version),
        }
        return {
            "metaData": {
                "id": "ee3038c9-128e-4d63-98ee-c122c432b978", "format": {"provider": "parquet", "options": {}},
                "schemaString": SCHEMA_TEXT, "partitionColumns": [], "configuration": configuration,
            }
        }  # fmt: skip


def random_log(folder: Path, seed: int) -> RandomLog:
    shutil.rmtree(folder, ignore_errors=True)
    return RandomLog(folder, Random(seed))
