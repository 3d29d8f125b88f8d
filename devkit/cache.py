"""Keeps downloads in a cache folder, where a folder is whole or not there at all.

Every clone on a machine shares one cache folder. A folder in it is complete from the moment it has its name: it is
built beside it under a temporary name and renamed. One lock per cache is held while anything is built, so that two
clones neither download the same thing twice nor write into one Maven repository at the same time.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devkit.errors import DevkitError
from vnode_backfill.config.cache_folder import cache_folder, private_folder


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, built by `build(empty folder)` if it is not there yet.

    Calling it again, from any process, only returns the path. A build that fails leaves nothing.
    """
    target = _own_folder() / name
    if target.is_dir():
        return target
    with cache_lock():
        if not target.is_dir():
            _build(target, build)
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        build(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def cache_lock() -> Iterator[None]:
    """Held by one thread of one process of this user at a time."""
    # The kernel drops the lock with the process, so a killed download blocks nobody.
    with (_own_folder() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _own_folder() -> Path:
    """Programs are run from it, so it must be this user's alone."""
    try:
        return private_folder(cache_folder())
    except OSError as error:
        hint = "Set XDG_CACHE_HOME to a folder that only you can write to."
        raise DevkitError("downloads cannot be kept safely", detail=str(error), hint=hint) from error
