"""Runs each kernel as machine code where numba is installed, and as plain Python where it is not, from one source.

A kernel is written in the part of Python that numba compiles: integers, one-byte reads, loops. Without numba (not
installed, or switched off by VNODE_BACKFILL_NUMBA=0) the same function runs interpreted over memoryviews, whose items
are Python integers; it is slower by a factor of about 50 and gives the same values, because no kernel relies on
wrap-around.

numba keeps compiled code on disk, beside the module's file. A module that an executor imports from an archive has none;
so its source is written to a cache folder, under a name that says its content, and the compiled code beside it:
compiled once per machine, not once per process.

What must be true: compiled code is loaded from where only this user and root can write, because numba's index of it is
a pickle. That is the folder the module itself was imported from, or one that `cache_folder` calls private. Where numba
finds neither (it also looks in `NUMBA_CACHE_DIR` and in its own folder in the user's cache), each process compiles
for itself, which takes some seconds.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import ParamSpec, TypeVar, cast
from uuid import uuid4
from zipimport import zipimporter

import numpy as np

from vnode_backfill.config.cache_folder import is_private, private_cache_folder

P = ParamSpec("P")
R = TypeVar("R")

COMPILING = os.environ.get("VNODE_BACKFILL_NUMBA", "1") != "0" and find_spec("numba") is not None


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """A kernel that is called with numpy arrays and plain numbers; compiled at its first call."""
    return _jitted(function) if COMPILING else _interpreted(function)


def kernel_part(function: Callable[P, R]) -> Callable[P, R]:
    """A piece of a kernel, called by kernels of the same module only (numba's cache watches one file)."""
    return _jitted(function) if COMPILING else function


def _jitted(function: Callable[P, R]) -> Callable[P, R]:
    import numba

    if isinstance(function, FunctionType):
        function.__code__ = _in_a_file(function.__code__, function.__globals__)
        # "No locator available": no folder for the cache can be written.
        with suppress(RuntimeError):
            jitted: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
            # Nothing has been loaded from there yet.
            if _is_safe(Path(jitted.stats.cache_path), Path(function.__code__.co_filename)):  # type: ignore[attr-defined]
                return jitted
    return cast("Callable[P, R]", numba.njit(nogil=True)(function))


def _is_safe(cache: Path, source: Path) -> bool:
    """Python itself runs what is in `__pycache__` beside a module."""
    return cache == source.parent / "__pycache__" or is_private(cache)


def _in_a_file(code: CodeType, module: Mapping[str, object]) -> CodeType:
    """The same code, said to come from a file that exists: numba looks for its cache beside that."""
    loader, name = module.get("__loader__"), str(module["__name__"])
    if Path(code.co_filename).is_file() or not isinstance(loader, zipimporter):
        return code
    source = loader.get_source(name) or ""
    folder = private_cache_folder("kernels", hashlib.sha256(source.encode()).hexdigest()[:16])
    if folder is not None:
        with suppress(OSError):
            return code.replace(co_filename=str(_written(folder / f"{name.rpartition('.')[2]}.py", source)))
    return code


def _written(path: Path, source: str) -> Path:
    """The file with this source; made whole or not at all, since other processes may be doing the same."""
    if not path.is_file():
        unfinished = path.with_name(f".{path.name}-{uuid4().hex}")
        unfinished.write_text(source)
        # numba may take a file with another time for another source, so the first one to be there stays.
        with suppress(FileExistsError):
            path.hardlink_to(unfinished)
        unfinished.unlink()
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path.parent} cannot be written")
    return path


def _interpreted(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        views = (value.data if isinstance(value, np.ndarray) else value for value in args)
        return cast("Callable[..., R]", function)(*views, **kwargs)

    return call
