"""Reads the next ranges while the last one is written: a lane waits for its source and its sink at once, not in turn.

What must be true: the writer gets, range by range, the very batches that were read, in their order; a range counts as
read only after its reader has come to its end; a reader's error is the writer's; no thread is left running. Why it is:

- One thread reads, and nothing but it touches the source's connection. What it has read goes through one queue.
- A range's batches are followed by its end, put there by the reader after the last batch was proven; an error takes the
  end's place.
- Two ranges at most are in progress, one to write and one to read, and of what is read `_MOST_BYTES` and a batch.
- A result may stay open while the range before it is written. The source waits for minutes; then the read fails and is
  tried again.
- Leaving the block asks the reader to stop and waits for it: at its next batch, or when the source's own timeout ends
  its waiting.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import TracebackType

import pyarrow as pa

from vnode_backfill.words.errors import LawBrokenError

Batches = Generator[pa.RecordBatch, None, None]
Ranges = Generator[Batches, None, None]
"""Ranges one after the other, each as its batches; the next one is asked for only when the last is at its end."""
_MOST_BYTES = 32 * 1024 * 1024


class _Range:
    """What was read of one range and is not taken yet."""

    def __init__(self) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.ended = False


class ReadAhead:
    """The ranges of `read`, which runs in its own thread, as the writer takes them."""

    def __init__(self, read: Callable[[], Ranges]) -> None:
        self._read = read
        self._changed = threading.Condition()
        self._ranges: deque[_Range] = deque()
        self._bytes = 0
        self._stopped = self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)

    def __enter__(self) -> ReadAhead:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def __iter__(self) -> Iterator[Batches]:
        """Each range is taken to its end before the next one is asked for."""
        while (current := self._next_range()) is not None:
            yield self._taken(current)
            self._finish(current)

    def _next_range(self) -> _Range | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ranges or self._ended)
            if self._ranges:
                return self._ranges[0]
        if self._error is not None:
            raise self._error
        return None

    def _taken(self, current: _Range) -> Batches:
        while (batch := self._next_batch(current)) is not None:
            yield batch

    def _next_batch(self, current: _Range) -> pa.RecordBatch | None:
        with self._changed:
            self._changed.wait_for(lambda: current.batches or current.ended or self._ended)
            if current.batches:
                batch = current.batches.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
                return batch
            if current.ended:
                return None
        assert self._error is not None, "a reader ends a range, or fails"
        raise self._error

    def _finish(self, current: _Range) -> None:
        with self._changed:
            if current.batches or not current.ended:
                raise LawBrokenError("a range was left before its end")
            self._ranges.popleft()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._read_all()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the writer raises it
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _read_all(self) -> None:
        with closing(self._read()) as ranges:
            for batches in ranges:
                current = self._begun()
                with closing(batches):
                    for batch in batches:
                        if not self._put(current, batch):
                            return
                if not self._end(current):
                    return

    def _begun(self) -> _Range:
        current = _Range()
        with self._changed:
            self._ranges.append(current)
            self._changed.notify_all()
        return current

    def _put(self, current: _Range, batch: pa.RecordBatch) -> bool:
        """Whether to continue; waits while too much is ahead."""
        with self._changed:
            current.batches.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._bytes < _MOST_BYTES or self._stopped)
            return not self._stopped

    def _end(self, current: _Range) -> bool:
        """Whether to continue with the next range; waits while the writer is at the one before."""
        with self._changed:
            current.ended = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_next(current) or self._stopped)
            return not self._stopped

    def _is_next(self, current: _Range) -> bool:
        return not self._ranges or self._ranges[0] is current
