"""Finds the places of keys in the plan; it asks the database for the order of text keys and remembers the answers.

For numbers, dates and bytes the client compares. For text under a collation it may not: it asks for the sort keys of
values it has not seen yet, many at a time. It asks over its own connection, which is opened when the first text key
comes, or over one that it is lent for each question. The one that is lent may be of any table of the same database:
a reader of many tables asks over one connection, and remembers as much for all as for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consume_upstream.upstream_table import UpstreamSession, UpstreamTable, Weights
from vnode_backfill.words.key import Key, KeyKind, keys_of
from vnode_backfill.words.key_range import SplitPlan

LendSession = Callable[[], AbstractContextManager[UpstreamSession]]
_REMEMBERED = 200_000


class KeyOrder:
    """Places keys in a plan. A context manager, because it may hold a connection; `lend` gives it one for each
    question."""

    def __init__(
        self, table: UpstreamTable, plan: SplitPlan, lend: LendSession | None = None, *, sharers: int = 1
    ) -> None:
        self._table, self._plan, self._lend = table, plan, lend
        self._limit = _REMEMBERED // sharers
        self._has_text = any(part.kind is KeyKind.TEXT for part in plan.parts)
        self._known: dict[Key, Weights] = {}
        self._open = ExitStack()
        self._session: UpstreamSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def places(self, keys: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The position in the plan (-1 outside) and the vnode of each key."""
        return self._plan.vnodes_of(keys, self.weights(keys))

    def weights(self, keys: Sequence[pa.Array]) -> list[pa.Array | None] | None:
        """The sort keys of text parts, None for the others; None as a whole if there is no text."""
        if not self._has_text:
            return None
        wanted = keys_of(self._plan.parts, keys)
        unknown = list(dict.fromkeys(key for key in wanted if key not in self._known))
        if unknown:
            if len(self._known) > self._limit:
                self._known.clear()
                unknown = list(dict.fromkeys(wanted))
            self._known.update(zip(unknown, self._ask(unknown), strict=True))
        return [
            pa.array([self._known[key][number] for key in wanted], pa.binary()) if part.kind is KeyKind.TEXT else None
            for number, part in enumerate(self._plan.parts)
        ]

    def _ask(self, keys: list[Key]) -> list[Weights]:
        if self._lend is not None:
            with self._lend() as session:
                return session.collation_keys(keys, self._table.definition)
        if self._session is None:
            self._session = self._open.enter_context(self._table.session())
        return self._session.collation_keys(keys)


class OneSession:
    """Lends one connection for each question. It is opened at the first, and closed at the end of the `with` block."""

    def __init__(self, table: UpstreamTable) -> None:
        self._table = table
        self._open = ExitStack()
        self._session: UpstreamSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @contextmanager
    def lend(self) -> Iterator[UpstreamSession]:
        if self._session is None:
            self._session = self._open.enter_context(self._table.session())
        yield self._session
