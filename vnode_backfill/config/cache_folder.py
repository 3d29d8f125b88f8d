"""Finds folders in which this user's processes may keep what they could make again, and that belong to this user alone.

What is kept is run later: compiled kernels (an index of them is a pickle), classes of a JVM, programs. So a folder
counts only if nobody but this user and root can change it. Its path is resolved first. Then every folder from the root
down is checked before the next one: it is a folder and not a link, it belongs to root or to this user, and others
cannot write to it. Above the last, a folder that others may write to is fine if it is sticky: there they cannot rename
or remove what is not theirs. Folders that are missing are made with mode 0700. After that the path can be used by its
name, because nobody else could have put something else there.

    /tmp                     root   1777   others may write, but sticky
    /tmp/vnode-backfill-7    user 8 0700   refused: another user was there first
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/vnode-backfill`, else `~/.cache/vnode-backfill`.

    It need not exist, and need not be this user's alone. A container's user may have no home; then it is a folder among
    the temporary ones.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not home.startswith("/"):
        home = os.path.expanduser("~/.cache")  # noqa: PTH111 - raises without a home
    return Path(home) / "vnode-backfill" if home.startswith("/") else _temporary_folder()


def private_cache_folder(*names: str) -> Path | None:
    """The folder of these names in the user's cache folder, or among the temporary ones; None if neither is safe."""
    return next(_private_folders(names), None)


def private_folder(folder: Path) -> Path:
    """This folder, resolved and made if it is missing; PermissionError if somebody else could change what is in it."""
    path = Path(os.path.realpath(folder))
    for part in (*reversed(path.parents), path):
        with suppress(FileExistsError):
            if not os.path.lexists(part):
                part.mkdir(0o700)
        _check(part, last=part == path)
    return path


def is_private(folder: Path) -> bool:
    """Whether a folder that exists is this user's alone, under a path without links."""
    try:
        return folder.is_dir() and private_folder(folder) == folder
    except OSError:
        return False


def _private_folders(names: tuple[str, ...]) -> Iterator[Path]:
    for place in (cache_folder, _temporary_folder):
        with suppress(OSError):
            yield private_folder(place().joinpath(*names))


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"vnode-backfill-{os.geteuid()}"


def _check(folder: Path, *, last: bool) -> None:
    found, own = folder.lstat(), os.geteuid()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder")
    if found.st_uid not in ((own,) if last else (own, 0)):
        raise PermissionError(f"{folder} belongs to user {found.st_uid}, not to user {own}")
    if found.st_mode & _OTHERS_WRITE and (last or not found.st_mode & stat.S_ISVTX):
        raise PermissionError(f"{folder} can be written to by others (mode {stat.S_IMODE(found.st_mode):o})")
