"""Reaches a folder of Delta tables, local or in an object store, and turns what its storage says into errors of ours.

One set of options logs into an object store, for Delta's log and for data files alike. The kind of error decides
whether a later try can help: a path that is not a folder or may not be written stays so, everything else may be
repaired.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake._internal import DeltaFileSystemHandler
from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError
from deltalake.fs import DeltaStorageHandler

from vnode_backfill.words.errors import SinkError, SinkUnavailableError

_COLOURS = re.compile("\x1b\\[[0-9;]*m")


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
        local = local_path(self.path)
        if local is not None:
            return pafs.SubTreeFileSystem(str(local.absolute()), pafs.LocalFileSystem())
        return pafs.PyFileSystem(DeltaStorageHandler(self.path, options=dict(self.options)))

    def make_folder(self, folder: str = "") -> None:
        """Make the folder, or one in it, where folders exist; an object store has none."""
        local = local_path(self.path)
        if local is not None:
            (local / folder).mkdir(parents=True, exist_ok=True)

    def write_whole(self, name: str, data: bytes) -> None:
        """Write one small file, whole or not at all. A second call writes over the first one's."""
        upload = cast("_Upload", self._files().open_output_stream(name, None))
        upload.write(data)
        upload.close()

    def read_whole(self, name: str) -> bytes | None:
        """The content of one small file; None if there is no such file."""
        try:
            held = self._files().open_input_file(name)
        except FileNotFoundError:
            return None
        return held.read(held.size())

    def remove_file(self, name: str) -> None:
        """Delete one file; a file that is not there counts as deleted."""
        with suppress(FileNotFoundError):
            self._files().delete_file(name)

    def remove(self) -> None:
        """Delete the folder and all that is in it; a folder that is not there counts as deleted."""
        local = local_path(self.path)
        if local is not None:
            shutil.rmtree(local, ignore_errors=True)
            return
        filesystem = self.filesystem()
        for entry in filesystem.get_file_info(pafs.FileSelector("", recursive=True, allow_not_found=True)):
            if entry.is_file:
                filesystem.delete_file(entry.path)

    def _files(self) -> DeltaFileSystemHandler:
        return DeltaFileSystemHandler(self.path, dict(self.options))


class _Upload(Protocol):
    def write(self, data: bytes) -> int: ...

    def close(self) -> None: ...


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
