"""Keeps indexes of files on the local disk, where every process of the job maps them into memory.

What must be true: an index that comes from here is that of the file it is asked for. A wrong one would miss rows, and
their keys would be in the table twice. Why it is:

- A file's name is unique and its content never changes. An index is kept under the table's path, the file's path and
  the names and types of the key columns.
- Nobody else can write to the folder: it belongs to this user alone (see `cache_folder`).
- An index is written under another name and renamed, so it is whole or not there. After a power cut a file may have its
  size and not its content. So the first time a process maps one, it compares the checksum of all of it.

Whatever is missing, cut or damaged is made again from the file itself. An index that is deleted while it is mapped
stays in memory for those who have it. All indexes together are not larger than the limit: those that were used least
recently go first, and one that is larger than the limit is not kept at all.

Every merge leaves a small file, which is joined soon. Its index stays in memory and never gets a file: there would be
tens of thousands of them a day, of files that are gone, and whoever makes room lists them all. Measured over 1,500
merges, each cost 37 CPU-ms at first and 73 at the end.

Making an index costs several times as much as a search without one. So a file gets its index when it is asked for the
second time, and an index that was used within the last minute goes for no other. Otherwise a table whose indexes exceed
the limit would have each of them made again in every epoch. Its files without an index are searched by row groups:

    room for 2, files a b c, each asked for once per epoch
    epoch 1   a b c searched
    epoch 2   a b get their index, that of c has no room
    epoch 3   a b by index, c searched
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import stat
import struct
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from uuid import uuid4

import numpy as np
import pyarrow as pa

from vnode_backfill.config.cache_folder import private_cache_folder, private_folder
from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.parquet import read_columns
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.sinks.delta.keys.index import Arrays, BytesKeys, FileKeys, NumberKeys, index_keys
from vnode_backfill.sinks.delta.keys.pruning import find_pruned
from vnode_backfill.sinks.delta.keys.values import Ints
from vnode_backfill.words.errors import SinkError

_MAGIC = b"vnbkeys1"
_HEAD = struct.Struct("<8sII")
"""The format, the size of the description, and the checksum of everything after this."""
_ALIGNED = 64
_SUFFIX = ".keys"
_RECENT_SECONDS = 60
"""An index that was used within this time goes for no other."""
_LOOK_SECONDS = 20.0
_FULL_SECONDS = 5.0
"""For so long after there was no room nobody looks for some again: a look lists the folder."""
_ASKED_PATHS = 65_536
_SIZE_UNKNOWN = 0
_SMALL_BYTES = 256 * 1024
"""An index up to this size stays in memory: 32,768 numbers."""
_SMALL_TOGETHER = 32 * 1024 * 1024
_SMALL_AT_LEAST = 4096
"""What an index in memory counts for at least."""


@lru_cache(maxsize=4)
def key_cache(limit_bytes: int) -> KeyCache:
    """This user's indexes on this machine, of all jobs; none is kept where no folder is this user's alone."""
    folder = private_cache_folder("keys") if limit_bytes else None
    return KeyCache(folder or Path(), limit_bytes if folder else 0, in_memory=_SMALL_BYTES)


class _Account:
    """How many bytes a folder holds: looked up now and then, and what this process has added since.

    Listing a folder of thousands of indexes takes longer than making a small one. Other processes add to it, too, so
    the limit may be passed until the next look.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._bytes, self._looked = folder, 0, -math.inf

    @property
    def bytes(self) -> int:
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            self._bytes = sum(size for _, size, _ in _entries(self._folder))
        return self._bytes

    def add(self, size: int) -> None:
        self._bytes += size

    def forget(self) -> None:
        """Look again: much has changed."""
        self._looked = -math.inf


_ACCOUNTS: dict[Path, _Account] = {}
"""One for each folder: the caches of all tables of a job share it."""


class KeyCache:
    """The indexes in one folder, up to `limit_bytes`; with 0 none is kept. Threads and processes may share it.

    Indexes of up to `in_memory` bytes are kept in this process only, up to 32 MB of them beside the limit.
    """

    def __init__(self, folder: Path, limit_bytes: int, *, in_memory: int = 0) -> None:
        self._limit, self._in_memory_bytes = limit_bytes, in_memory
        self._small: OrderedDict[Path, FileKeys] = OrderedDict()
        self._small_bytes = 0
        self._mapped: OrderedDict[Path, FileKeys] = OrderedDict()
        self._asked: OrderedDict[Path, int] = OrderedDict()
        """Files that were asked for and have no index here, with its size where one was made and had no room."""
        self._full_until = 0.0
        self._lock = Lock()
        self._account = _ACCOUNTS.setdefault(folder, _Account(folder))
        try:
            self._folder = private_folder(folder) if limit_bytes else folder
        except OSError as error:
            raise SinkError(
                f"indexes of keys cannot be kept in {folder}",
                detail=str(error),
                hint="Name a folder that only this user can write to, or set `sink.delta.key_cache: 0B`.",
            ) from error

    def find(self, storage: Storage, file: DataFile, schema: pa.Schema, keys: pa.Table) -> tuple[Ints, Ints]:
        """Pairs of a row of the file and a key that is the row's: by its index, or without one if none is kept."""
        if not self._limit:
            return find_pruned(storage, file, schema, keys)
        path = self._path(storage, file, schema)
        found = self._in_memory(path) or self._map(path, schema)
        if found is None and not self._is_worth_it(path):
            return find_pruned(storage, file, schema, keys)
        return (found or self._make(path, storage, file, schema)).find(keys)

    def of(self, storage: Storage, file: DataFile, schema: pa.Schema) -> FileKeys:
        """The index of a file, made if it is not here."""
        if not self._limit:
            return _made(storage, file, schema)
        path = self._path(storage, file, schema)
        return self._in_memory(path) or self._map(path, schema) or self._make(path, storage, file, schema)

    def _path(self, storage: Storage, file: DataFile, schema: pa.Schema) -> Path:
        return self._folder / (_name(storage, file, schema) + _SUFFIX)

    def _is_worth_it(self, path: Path) -> bool:
        """Whether to make an index: not for the first question, and not where one would find no room."""
        with self._lock:
            size = self._asked.pop(path, None)
            self._asked[path] = _SIZE_UNKNOWN if size is None else size
            while len(self._asked) > _ASKED_PATHS:
                self._asked.popitem(last=False)
            is_full = time.monotonic() < self._full_until
        return size is not None and (size == _SIZE_UNKNOWN or not is_full) and self._has_room(size)

    def _has_room(self, size: int) -> bool:
        """Whether an index of this size could be kept, if what was not used for a while goes."""
        try:
            if not size or self._account.bytes + size <= self._limit:
                return True
            held = _entries(self._folder)
        except OSError:
            return False
        has_room = sum(each for used, each, _ in held if used >= _recently()) + size <= self._limit
        if not has_room:
            self._full_until = time.monotonic() + _FULL_SECONDS
        return has_room

    def _make(self, path: Path, storage: Storage, file: DataFile, schema: pa.Schema) -> FileKeys:
        made = _made(storage, file, schema)
        if _size(made) <= self._in_memory_bytes:
            self._keep_small(path, made)
            return made
        if self._store(path, made):
            with self._lock:
                self._asked.pop(path, None)
            return self._map(path, schema) or made
        return made

    def _keep_small(self, path: Path, index: FileKeys) -> None:
        with self._lock:
            self._asked.pop(path, None)
            if path not in self._small:
                self._small[path] = index
                self._small_bytes += _weight(index)
            while self._small_bytes > _SMALL_TOGETHER:
                self._small_bytes -= _weight(self._small.popitem(last=False)[1])

    def _in_memory(self, path: Path) -> FileKeys | None:
        with self._lock:
            if path in self._small:
                self._small.move_to_end(path)
                return self._small[path]
            found = self._mapped.get(path)
            if found is not None:
                self._mapped.move_to_end(path)
                with suppress(OSError):
                    os.utime(path)
            return found

    def _map(self, path: Path, schema: pa.Schema) -> FileKeys | None:
        """The index in this file, None if there is none; a damaged one is deleted."""
        try:
            index = _loaded(_mapping(path), schema)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError):
            with suppress(OSError):
                path.unlink()
            return None
        with self._lock:
            self._mapped[path] = index
            while sum(map(_size, self._mapped.values())) > self._limit:
                self._mapped.popitem(last=False)
        return index

    def _store(self, path: Path, index: FileKeys) -> bool:
        """Whether it is kept now; it is not if it has no room or the disk does not take it."""
        content = _content(index)
        size = sum(map(len, content))
        draft = path.with_name(f"{uuid4().hex}.draft")
        try:
            if self._make_room(size):
                with draft.open("xb") as file:
                    file.writelines(content)
                draft.replace(path)
                return True
        except OSError:
            self._full_until = time.monotonic() + _FULL_SECONDS
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        with self._lock:
            self._asked[path] = size
        return False

    def _make_room(self, size: int) -> bool:
        """Delete what was used least recently, also drafts of processes that were killed; False if that is not
        enough."""
        private_folder(self._folder)
        if not self._has_room(size):
            return False
        self._account.add(size)
        if self._account.bytes <= self._limit:
            return True
        held = sorted(_entries(self._folder))
        total = sum(each for _, each, _ in held) + size
        for _, each, path in held:
            if total <= self._limit:
                break
            path.unlink(missing_ok=True)
            with self._lock:
                self._mapped.pop(path, None)
            total -= each
        self._account.forget()
        return True


def _made(storage: Storage, file: DataFile, schema: pa.Schema) -> FileKeys:
    with storage_errors(f"{file.path} cannot be read"):
        return index_keys(read_columns(storage, file.path, schema), schema)


def _name(storage: Storage, file: DataFile, schema: pa.Schema) -> str:
    told = json.dumps([storage.path, file.path, [(field.name, str(field.type)) for field in schema]])
    return hashlib.sha256(told.encode()).hexdigest()


def _recently() -> int:
    """What was used since then, in nanoseconds since 1970, goes for no other."""
    return time.time_ns() - _RECENT_SECONDS * 10**9


def _entries(folder: Path) -> list[tuple[int, int, Path]]:
    """When each file was used last, its size, and its path."""
    found: list[tuple[int, int, Path]] = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            facts = path.lstat()
            found.append((facts.st_mtime_ns, facts.st_size, path))
    return found


def _size(index: FileKeys) -> int:
    return sum(array.nbytes for array in index.arrays().values())


def _weight(index: FileKeys) -> int:
    return max(_size(index), _SMALL_AT_LEAST)


def _content(index: FileKeys) -> list[bytes | memoryview]:
    """The index as a file: the head, the description of its arrays, and the arrays, each where it can be mapped."""
    arrays = index.arrays()
    secret = index.secret.hex() if isinstance(index, BytesKeys) else ""
    shapes = [(name, array.dtype.str, len(array)) for name, array in arrays.items()]
    told = json.dumps({"secret": secret, "arrays": shapes}).encode()
    body: list[bytes | memoryview] = [told, _padding(_HEAD.size + len(told))]
    for array in arrays.values():
        body += [np.ascontiguousarray(array).view(np.uint8).data, _padding(array.nbytes)]
    checksum = 0
    for part in body:
        checksum = zlib.crc32(part, checksum)
    return [_HEAD.pack(_MAGIC, len(told), checksum), *body]


def _padding(size: int) -> bytes:
    return bytes(-size % _ALIGNED)


def _mapping(path: Path) -> memoryview:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a file of this user")
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


def _loaded(held: memoryview, schema: pa.Schema) -> FileKeys:
    """The index over the mapped memory; ValueError if it is not whole."""
    if len(held) < _HEAD.size:
        raise ValueError("too short")
    magic, size, checksum = _HEAD.unpack_from(held)
    if magic != _MAGIC or zlib.crc32(held[_HEAD.size :]) != checksum:
        raise ValueError("another format, or damaged")
    told = json.loads(bytes(held[_HEAD.size : _HEAD.size + size]))
    arrays = _arrays(held, _HEAD.size + size, told["arrays"])
    if "numbers" in arrays:
        order = arrays["order"].view(np.uint32) if "order" in arrays else None
        return NumberKeys(schema, arrays["numbers"].view(np.int64), order)
    return _bytes_keys(schema, bytes.fromhex(told["secret"]), arrays)


def _bytes_keys(schema: pa.Schema, secret: bytes, arrays: Arrays) -> BytesKeys:
    offsets = arrays["offsets"]
    return BytesKeys(
        schema,
        secret,
        arrays["hashes"].view(np.uint64),
        arrays["order"].view(np.uint32),
        offsets.view(np.int32) if offsets.dtype == np.int32 else offsets.view(np.int64),
        arrays["data"].view(np.uint8),
        arrays["places"].view(np.uint32) if "places" in arrays else None,
    )


def _arrays(held: memoryview, start: int, shapes: Sequence[tuple[str, str, int]]) -> Arrays:
    arrays = {}
    for name, kind, count in shapes:
        start += -start % _ALIGNED
        arrays[name] = np.frombuffer(held, np.dtype(kind), count, start)
        start += arrays[name].nbytes
    return arrays
