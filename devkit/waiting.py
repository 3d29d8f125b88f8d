"""Waits for a condition instead of sleeping for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from devkit.errors import DevkitError

POLL_SECONDS = 0.05


def wait_for(
    condition: Callable[[], bool], what: str, *, seconds: float = 60, state: Callable[[], object] = str
) -> None:
    """Return as soon as the condition holds; raise with `what` and the last `state()` when the time is up."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise DevkitError(f"waited {seconds:g} s in vain: {what}", detail=str(state()))
        pause.wait(POLL_SECONDS)
