"""One source for each kernel, run as machine code where numba is there and as plain Python where it is not.

A kernel is written in the part of Python that numba compiles: integers, one-byte reads, loops. Without numba (not
installed, or switched off by VNODE_BACKFILL_NUMBA=0) the same function runs interpreted over memoryviews, whose items are
Python integers; it is slower by a factor of about 50 and gives the same values, because no kernel relies on wrap-around.

numba keeps compiled code on disk, beside the module or in the user's cache folder. Where neither can be (a module that was
imported from a zip file), each process compiles for itself, which takes some seconds.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import ParamSpec, TypeVar, cast

import numpy as np

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

    try:
        jitted: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # "No locator available": the module is in a zip file, or no folder for the cache can be written.
        jitted = numba.njit(nogil=True)(function)
    return jitted


def _interpreted(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        views = (value.data if isinstance(value, np.ndarray) else value for value in args)
        return cast("Callable[..., R]", function)(*views, **kwargs)

    return call
