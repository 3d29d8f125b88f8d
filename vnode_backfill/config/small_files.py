"""Reads a file that a person wrote or named: a configuration, a password, a certificate.

What must be true: the read ends, and it never fills the memory, whatever the path names. A FIFO without a writer is an
empty file. A FIFO whose writer is silent for ten seconds is an error, and so is a file or a device that holds more than
the limit. A pipe with a writer is read to its end, so `--config <(sops -d job.yaml)` works.
"""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

LONGEST = 1024 * 1024
_SILENCE_SECONDS = 10.0


def read_small_text(path: Path, limit: int = LONGEST) -> str:
    """The text of a UTF-8 file of at most `limit` bytes, without byte order mark, or OSError or UnicodeDecodeError."""
    # Without the flag the system waits for a writer of a FIFO before it returns.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _read_to_end(handle, limit).decode("utf-8-sig")
    finally:
        os.close(handle)


def _read_to_end(handle: int, limit: int) -> bytes:
    found = bytearray()
    while len(found) <= limit:
        try:
            part = os.read(handle, 64 * 1024)
        except BlockingIOError:
            if not select.select([handle], [], [], _SILENCE_SECONDS)[0]:
                raise OSError(errno.ETIMEDOUT, f"nothing came for {_SILENCE_SECONDS:g} s") from None
            continue
        if not part:
            return bytes(found)
        found += part
    raise OSError(errno.EFBIG, f"it is longer than {limit:,} bytes")
