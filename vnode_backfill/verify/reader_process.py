"""Reads files of a target in a process of its own: runs tasks that come by its standard input until that ends.

A task is a pickled function and its argument, and so is a task's result, on the standard output. Whatever else is
printed goes to the standard error. The end of the process that asks is the end of the input, and so of this process. A
thread looks for that end as well, because a task may take hours. An interrupt from the keyboard is left to the one that
asks.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from vnode_backfill.words.errors import ActorError, BackfillError

_LOOK_SECONDS = 1.0


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        while True:
            try:
                function, task = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            pickle.dump(_answer(function, task), answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()


def _end_with(parent: int) -> None:
    """End this process when another one has become its parent, whatever it does at that moment."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _answer(function: Callable[[object], object], task: object) -> object:
    """The result of a task; an error is a result."""
    try:
        return function(task)
    except BackfillError as error:
        return error
    except Exception:  # noqa: BLE001 - it is raised in the process that asked
        return ActorError("a task that reads the target failed", detail=traceback.format_exc()[-4000:])
