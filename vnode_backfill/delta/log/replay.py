"""Replays the log of a Delta table: which files, transactions and properties its newest version has.

What must be true: the state is that of a version whose commits were all read, in order, none left out. Why it is:

- It begins at the newest complete checkpoint or at commit 0, and takes commits one after the other from there on. If
  the folder names a commit beyond the last one that was found, there is a gap, and nothing is returned.
- `_last_checkpoint` only says where to begin to look. A wrong one costs a listing, nothing else.
- Within one commit removals count first. A removal counts for the file with its path and its vector, no other.

A state that is held is brought up to date by reading the commits behind it. It counts only while its own commit is
there as it was read: a log that was cleaned past it, or a table that was made again, is replayed from the beginning.

    held: version 41 (tag x) → commit 41 has tag x → 42 found, 43 not → version 42
    held: version 41 (tag x) → commit 41 is gone   → checkpoint 75, commits 76, 77 → version 77
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, repeat, takewhile
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.log.actions import (
    VECTORS,
    Action,
    LiveFile,
    Metadata,
    Protocol,
    arrow_schema,
    column_types,
    parse_commit,
    removed_identity,
)
from vnode_backfill.delta.log.names import LOG, LogNames, commit_name, hint_of
from vnode_backfill.delta.log.protocol import check_replayable
from vnode_backfill.delta.storage import Content, Storage
from vnode_backfill.words.errors import SinkError

Identity = tuple[str, str | None]
Item = TypeVar("Item")
Result = TypeVar("Result")
_LOOKS = 4
"""A listing beside a writer may miss a commit and show a later one, and a cleanup may delete what was listed."""
_READERS = 8
_AHEAD = (1, 1, 8)
_MOST_AHEAD = 64
_OF_FILES = ("path", "size", "modificationTime", "stats", "deletionVector", "partitionValues", "tags")


@dataclass(frozen=True, slots=True, eq=False)
class TableVersion:
    """One version of a table.

    `files` are by path and vector. `transactions` hold the newest version of each application, and `places` the commits
    that set them, of those that were read. `tag` is that of the version's commit. `checkpoint` is the newest one known,
    -1 if there is none. `sizes` are the bytes of the commits behind it.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    files: Mapping[Identity, LiveFile]
    transactions: Mapping[str, int]
    places: Mapping[str, int]
    tag: str | None = None
    checkpoint: int = -1
    sizes: Mapping[int, int] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.metadata.schema_text)

    @property
    def has_vectors(self) -> bool:
        """Whether its files may have deletion vectors."""
        return VECTORS in self.protocol.features

    @property
    def log_bytes(self) -> int:
        """How much whoever opens the table reads besides the checkpoint."""
        return sum(self.sizes.values())

    def described(self, columns: Sequence[str]) -> list[DataFile]:
        """Its files with the bounds of `columns`."""
        wanted, types = tuple(columns), column_types(self.metadata.schema_text)
        return [file.describe(wanted, types) for file in self.files.values()]

    def with_checkpoint(self, version: int) -> TableVersion:
        """The same version, where the checkpoint of `version` is the newest one known."""
        newest = max(self.checkpoint, version)
        return replace(self, checkpoint=newest, sizes={at: size for at, size in self.sizes.items() if at > newest})

    def after(
        self, actions: Iterable[tuple[str, Action]], *, tag: str | None, checkpoint: int, size: int
    ) -> TableVersion:
        """The next version, which a commit of these actions makes. `size` is that of the commit in bytes."""
        building = _Building.of(self)
        building.apply(self.version + 1, actions, size)
        made = replace(building.finish(""), tag=tag, checkpoint=self.checkpoint)
        return made.with_checkpoint(checkpoint)


def newest(storage: Storage, held: TableVersion | None) -> TableVersion | None:
    """The newest version, found from the one that is held if there is one; None if there is no table."""
    if held is None or held.tag is None or storage.tag_of(commit_name(held.version)) != held.tag:
        return _replay(storage)
    commits = following(storage, held.version)
    first = next(commits, None)
    if first is None:
        return held
    building = _Building.of(held)
    tag = building.take(chain([first], commits))
    return replace(building.finish(storage.path), tag=tag, checkpoint=held.checkpoint)


def at_version(storage: Storage, version: int) -> TableVersion | None:
    """An earlier version, as everybody finds it who goes back in time; None if the log no longer leads to it."""
    names = LogNames.of(storage.list_names(LOG))
    behind = tuple(each for each in names.checkpoints if each[0] <= version)
    found = _read(storage, LogNames(behind, version), version)
    return found if found is not None and found.version == version else None


def created(actions: Iterable[tuple[str, Action]], *, tag: str | None, size: int) -> TableVersion:
    """The version that the commit of these actions makes where there is no table."""
    building = _Building()
    building.apply(0, actions, size)
    return replace(building.finish(""), tag=tag)


def checkpoint_behind(storage: Storage, table: TableVersion | None, version: int) -> int:
    """The newest checkpoint, -1 if there is none, once the commit of `version` was written behind `table`.

    The hint is believed if it is not above that commit and the version it was written behind is still there: a log that
    was cleaned past both has lost that one too, even if a slow writer has set the hint back since.
    """
    hint = hint_of(storage.read_whole(f"{LOG}/_last_checkpoint"))
    there = table is None or storage.tag_of(commit_name(table.version)) == table.tag
    if hint is not None and hint <= version and there:
        return hint
    return LogNames.of(storage.list_names(LOG)).checkpoint_version


def backwards(storage: Storage, version: int, most: int) -> Iterator[tuple[int, bytes]]:
    """The commits from `version` down, as long as they are there, at most so many."""
    ended, size = max(-1, version - most), 16
    while version > ended:
        chunk = range(version, max(ended, version - size), -1)
        for number, held in zip(chunk, in_threads(lambda n: storage.read_whole(commit_name(n)), chunk), strict=True):
            if held is None:
                return
            yield number, held
        version, size = version - len(chunk), _MOST_AHEAD * 4


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results in order; a store answers several questions in the time of one."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(work, items))


def _replay(storage: Storage) -> TableVersion | None:
    names = LogNames(())
    for _ in range(_LOOKS):
        names = listed(storage)
        if names.newest < 0:
            return None
        found = _read(storage, names)
        if found is not None and found.version >= names.newest:
            return found
    raise SinkError(
        f"the log of the Delta table at {storage.path} has a gap",
        detail=f"It has a commit {names.newest}, but not every one between checkpoint {names.checkpoint_version} and "
        "it.",
        hint="Restore the commits that are missing.",
    )


def listed(storage: Storage) -> LogNames:
    """The names of the log from its newest checkpoint on."""
    hint = hint_of(storage.read_whole(f"{LOG}/_last_checkpoint"))
    if hint is not None:
        names = LogNames.of(storage.list_names(LOG, after=f"{hint:020d}"))
        if names.checkpoint:
            return names
    names = LogNames.of(storage.list_names(LOG))
    if names.unknown_checkpoint > names.checkpoint_version:
        raise SinkError(
            f"the Delta table at {storage.path} cannot be read",
            detail=f"It has a checkpoint of version {names.unknown_checkpoint} in a form that is not supported here.",
            hint="Set `delta.checkpointPolicy` to classic, and make a checkpoint.",
        )
    return names


def _read(storage: Storage, names: LogNames, last: int | None = None) -> TableVersion | None:
    """The state that the named files lead to, no further than `last`; None if some of them are gone by now."""
    building = _Building()
    try:
        for part in names.checkpoint:
            building.load(_checkpoint(storage, part, "add", _OF_FILES, "txn", "protocol", "metaData"))
    except FileNotFoundError:
        return None
    building.version = names.checkpoint_version
    commits = following(storage, names.checkpoint_version)
    tag = building.take(takewhile(lambda commit: last is None or commit[0] <= last, commits))
    if building.version < 0:
        return None
    if tag is None:
        tag = storage.tag_of(commit_name(building.version))
    return replace(building.finish(storage.path), tag=tag, checkpoint=names.checkpoint_version)


def following(storage: Storage, version: int) -> Iterator[tuple[int, Content]]:
    """The commits behind `version`, one after the other, until one is not there."""
    for size in chain(_AHEAD, repeat(_MOST_AHEAD)):
        chunk = range(version + 1, version + 1 + size)
        contents = _read_ahead(storage, chunk)
        for number, content in zip(chunk, contents, strict=True):
            if content is None:
                return
            yield number, content
        version += size


def _read_ahead(storage: Storage, versions: range) -> Iterable[Content | None]:
    """The commits of these versions: of a store several at a time, of a local folder each when it is asked for."""
    if storage.is_local:
        return (storage.read_tagged(commit_name(version)) for version in versions)
    return in_threads(lambda version: storage.read_tagged(commit_name(version)), versions)


def _checkpoint(storage: Storage, name: str, kind: str, members: Sequence[str], *whole: str) -> pa.Table:
    data = storage.read_whole(name)
    if data is None:
        raise FileNotFoundError(name)
    parquet = pq.ParquetFile(pa.BufferReader(data))
    return parquet.read(columns=[*(f"{kind}.{member}" for member in members), *whole], use_threads=False)


def _structs(table: pa.Table, kind: str, members: Sequence[str]) -> Iterator[Action]:
    """The actions of one kind in a checkpoint."""
    if kind not in table.column_names:
        return
    rows = table.column(kind).combine_chunks()
    rows = rows.filter(rows.is_valid())
    held = [member for member in members if rows.type.get_field_index(member) >= 0]
    for values in zip(*(rows.field(member).to_pylist() for member in held), strict=True):
        yield dict(zip(held, values, strict=True))


class _Building:
    """A version in the making."""

    def __init__(self) -> None:
        self.version = -1
        self.files: dict[Identity, LiveFile] = {}
        self.transactions: dict[str, int] = {}
        self.places: dict[str, int] = {}
        self.sizes: dict[int, int] = {}
        self.protocol: Protocol | None = None
        self.metadata: Metadata | None = None

    @classmethod
    def of(cls, table: TableVersion) -> _Building:
        made = cls()
        made.version, made.protocol, made.metadata = table.version, table.protocol, table.metadata
        made.files, made.transactions, made.places = dict(table.files), dict(table.transactions), dict(table.places)
        made.sizes = dict(table.sizes)
        return made

    def take(self, commits: Iterable[tuple[int, Content]]) -> str | None:
        """Apply the commits; the tag of the last one, None if there was none."""
        tag = None
        for version, content in commits:
            self.apply(version, parse_commit(content.data, commit_name(version)), len(content.data))
            tag = content.tag
        return tag

    def apply(self, version: int, actions: Iterable[tuple[str, Action]], size: int) -> None:
        found = list(actions)
        for kind, action in found:
            if kind == "remove":
                self.files.pop(removed_identity(action), None)
        for kind, action in found:
            self._apply(kind, action)
            if kind == "txn":
                self.places[str(action["appId"])] = version
        self.version = version
        self.sizes[version] = size

    def load(self, checkpoint: pa.Table) -> None:
        for action in _structs(checkpoint, "add", _OF_FILES):
            self._apply("add", action)
        for kind in ("txn", "protocol", "metaData"):
            if kind in checkpoint.column_names:
                for action in checkpoint.column(kind).drop_null().to_pylist():
                    self._apply(kind, action)

    def _apply(self, kind: str, action: Action) -> None:
        match kind:
            case "add":
                file = LiveFile.from_action(action)
                self.files[file.identity] = file
            case "txn":
                self.transactions[str(action["appId"])] = int(str(action["version"]))
            case "protocol":
                self.protocol = Protocol.from_action(action)
            case "metaData":
                self.metadata = Metadata.from_action(action)

    def finish(self, path: str) -> TableVersion:
        if self.protocol is None or self.metadata is None:
            raise SinkError(
                f"the Delta table at {path} cannot be read", detail="Its log does not say what the table is."
            )
        check_replayable(self.protocol, path)
        held = self.files, self.transactions, self.places
        return TableVersion(self.version, self.protocol, self.metadata, *held, sizes=self.sizes)
