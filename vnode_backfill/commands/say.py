"""Says to a person what a command does: on stderr, or to whoever listens in its place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context

Listener = Callable[[str], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def say(*lines: str) -> None:
    listener = _listener.get()
    for line in lines:
        if listener is None:
            print(f"vnode-backfill: {line}", file=sys.stderr)
        else:
            listener(line)


def for_threads(speak: Callable[..., None]) -> Listener:
    """Speak to whoever listens to this thread, from any other."""
    context = copy_context()
    return lambda line: context.copy().run(speak, line)


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Give the listener what is said in this block, by this thread; nothing of it is printed."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
