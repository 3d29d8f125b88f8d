"""Reaches a folder of Delta tables, local or in an object store, and turns what its storage says into errors of ours.

One set of options logs into an object store, for Delta's log and for data files alike. The kind of error decides
whether a later try can help: a path that is not a folder or may not be written stays so, everything else may be
repaired.

Small files of a local folder are looked at without the library of stores. A commit asks five such questions, and each
takes 20 to 50 CPU-microseconds instead of 180 to 280. They are written by that library, which knows how to write a file
only if there is none.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError

from vnode_backfill.words.errors import SinkError, SinkUnavailableError

if TYPE_CHECKING:
    import pyarrow.fs as pafs
    from obstore.store import ObjectStore

# The libraries of stores are loaded where they are used: commands that answer at once look at a local folder only.

_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./=-]+")
"""Names that the library of stores writes as they are. It encodes other characters."""


@dataclass(frozen=True, slots=True)
class Content:
    """A small file as it was read; another file in its place has another `tag`."""

    data: bytes
    tag: str | None


@dataclass(frozen=True, slots=True)
class _Head:
    """What is known of a file without its content."""

    tag: str | None
    modified: datetime
    size: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is there, by its path below the folder, and when it was written."""

    path: str
    modified: datetime


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder, local or in an object store, and how to log into it; the options are secrets and are never shown."""

    path: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, path: str, options: Mapping[str, str] | None = None) -> Storage:
        return cls(path.rstrip("/") or "/", tuple(sorted((options or {}).items())))

    def filesystem(self) -> pafs.FileSystem:
        """The folder as the root of a file system: pyarrow's if it is local, else the one that reads the Delta log."""
        import pyarrow.fs as pafs
        from deltalake.fs import DeltaStorageHandler

        local = local_path(self.path)
        if local is not None:
            return pafs.SubTreeFileSystem(str(local.absolute()), pafs.LocalFileSystem())
        return pafs.PyFileSystem(DeltaStorageHandler(self.path, options=dict(self.options)))

    @property
    def is_local(self) -> bool:
        return local_path(self.path) is not None

    @property
    def device(self) -> Hashable:
        """What decides how files here are written: the disk of a local folder, which must be there, or the bucket."""
        local = local_path(self.path)
        if local is not None:
            return local.stat().st_dev
        where = urlsplit(self.path)
        return where.scheme, where.netloc, self.options

    def make_folder(self, folder: str = "") -> None:
        """Make the folder, or one in it, where folders exist; an object store has none."""
        local = local_path(self.path)
        if local is not None:
            try:
                (local / folder).mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                raise NotADirectoryError(f"{local / folder} is a file") from error

    def write_whole(self, name: str, data: bytes) -> None:
        """Write one small file, whole or not at all. A second call writes over the first one's."""
        import obstore

        self.make_folder()
        with self._store() as store:
            obstore.put(store, name, data)

    def write_unseen(self, name: str, data: bytes) -> None:
        """Write a file under a name that nobody else knows yet: that it is whole is for the caller to say later."""
        local = self._local_file(name)
        if local is None:
            self.write_whole(name, data)
            return
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(data)

    def put_new(self, name: str, data: bytes) -> str | None:
        """Write one small file, whole or not at all, and return its tag. FileExistsError if there is one already.

        Demands the folder. Any other error leaves it open whether the file was written.
        """
        import obstore

        with self._store() as store:
            put = obstore.put(store, name, data, mode="create")
        return put.get("e_tag") if self._local_file(name) is None else self.tag_of(name)

    def read_whole(self, name: str) -> bytes | None:
        """The content of one small file; None if there is no such file."""
        held = self.read_tagged(name)
        return None if held is None else held.data

    def read_note(self, name: str) -> bytes | None:
        """The same, of a local folder without the library of stores: nothing but the content is asked for."""
        local = local_path(self.path)
        if local is None:
            return self.read_whole(name)
        try:
            return (local / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_tagged(self, name: str) -> Content | None:
        """The content of one small file with its tag; None if there is no such file."""
        import obstore

        local = self._local_file(name)
        try:
            if local is not None:
                with local.open("rb") as file:
                    return Content(file.read(), _tag(os.fstat(file.fileno())))
            with self._store() as store:
                found = obstore.get(store, name)
                return Content(found.bytes().to_bytes(), found.meta.get("e_tag"))
        except FileNotFoundError:
            return None

    def tag_of(self, name: str) -> str | None:
        """The tag of a file; None if there is no such file."""
        found = self._head(name)
        return None if found is None else found.tag

    def modified(self, name: str) -> datetime | None:
        """When a file was written; None if there is no such file."""
        found = self._head(name)
        return None if found is None else found.modified

    def size_of(self, name: str) -> int:
        """How many bytes a file has; 0 if there is no such file."""
        found = self._head(name)
        return 0 if found is None else found.size

    def _head(self, name: str) -> _Head | None:
        import obstore

        local = self._local_file(name)
        try:
            if local is not None:
                found = local.stat()
                return _Head(_tag(found), datetime.fromtimestamp(found.st_mtime, UTC), found.st_size)
            with self._store() as store:
                meta = obstore.head(store, name)
                return _Head(meta.get("e_tag"), meta["last_modified"], meta["size"])
        except FileNotFoundError:
            return None

    def _local_file(self, name: str) -> Path | None:
        """A file that can be looked at without the library of stores."""
        local = local_path(self.path)
        return local / name if local is not None and _PLAIN_NAME.fullmatch(name) else None

    def remove_file(self, name: str) -> None:
        """Delete one file; a file that is not there counts as deleted."""
        import obstore

        with suppress(FileNotFoundError), self._store() as store:
            obstore.delete(store, name)

    def list_names(self, folder: str, after: str = "") -> list[str]:
        """The names in a folder that sort behind `after`, in order; files of folders below may be among them."""
        import obstore

        local = local_path(self.path)
        if local is not None:
            try:
                return sorted(name for name in os.listdir(local / folder) if name > after)  # noqa: PTH208 - names only
            except FileNotFoundError:
                return []
        with self._store() as store:
            pages = obstore.list(store, folder, offset=f"{folder}/{after}" if after else None)
            return sorted(entry["path"].removeprefix(f"{folder}/") for page in pages for entry in page)

    def list_folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, in order; none if it is not there."""
        import obstore

        local = local_path(self.path)
        if local is not None:
            try:
                return sorted(entry.name for entry in (local / folder).iterdir() if entry.is_dir())
            except FileNotFoundError:
                return []
        with self._store() as store:
            found = obstore.list_with_delimiter(store, folder)["common_prefixes"]
            return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def list_files(self, without: str) -> list[StoredFile]:
        """Every file below the folder, but not those of the folder `without` in it. Links are neither followed nor
        named."""
        import obstore

        local = local_path(self.path)
        if local is not None:
            return list(_local_files(local, local / without))
        with self._store() as store:
            top = obstore.list_with_delimiter(store)
            folders = [obstore.list(store, folder) for folder in top["common_prefixes"] if folder != without]
            below = [entry for pages in folders for page in pages for entry in page]
            return [StoredFile(entry["path"], entry["last_modified"]) for entry in (*top["objects"], *below)]

    def remove(self) -> None:
        """Delete the folder and all that is in it; a folder that is not there counts as deleted."""
        import pyarrow.fs as pafs

        local = local_path(self.path)
        if local is not None:
            shutil.rmtree(local, ignore_errors=True)
            return
        filesystem = self.filesystem()
        for entry in filesystem.get_file_info(pafs.FileSelector("", recursive=True, allow_not_found=True)):
            if entry.is_file:
                filesystem.delete_file(entry.path)

    @contextmanager
    def _store(self) -> Iterator[ObjectStore]:
        """The store. What it says inside becomes an `OSError`."""
        from vnode_backfill.delta.object_store import open_local, open_remote, told_as_system_errors

        local = local_path(self.path)
        if local is not None and not local.exists():
            raise FileNotFoundError(f"there is no folder {local}")
        with told_as_system_errors(self.options):
            yield open_local(local.absolute()) if local is not None else open_remote(self.path, self.options)


def _tag(found: os.stat_result) -> str:
    """Another file in a file's place has another inode, or was written at another time."""
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"


def _local_files(folder: Path, without: Path) -> Iterator[StoredFile]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name) != without]
        for name in names:
            path = Path(place, name)
            if not path.is_symlink():
                with suppress(FileNotFoundError):
                    modified = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
                    yield StoredFile(path.relative_to(folder).as_posix(), modified)


@lru_cache(maxsize=4096)
def local_path(path: str) -> Path | None:
    """The path of a local folder, None for one in an object store."""
    if path.startswith("file://"):
        return Path(unquote(urlsplit(path).path))
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) else Path(path)


@contextmanager
def storage_errors(what: str, hint: str = "Check that the path is right, reachable and writable.") -> Iterator[None]:
    """Turn whatever the storage says into an error of the sink; what a later try may find repaired is retryable."""
    try:
        yield
    except (PermissionError, NotADirectoryError, IsADirectoryError, DeltaProtocolError, SchemaMismatchError) as error:
        raise SinkError(what, detail=_reason(error), hint=hint) from error
    except (OSError, DeltaError) as error:
        raise SinkUnavailableError(what, detail=_reason(error), hint=hint) from error
    except pa.ArrowException as error:
        raise SinkError(what, detail=_reason(error)) from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {_COLOURS.sub('', str(error)).strip()[:1000]}"
