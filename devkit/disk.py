"""Gives a folder its own small disk, which can be filled up, made read-only, and repaired again. Needs root."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devkit.commands import run_command
from devkit.waiting import wait_for

_FILLER = ".filler"


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """Mounted at `folder`."""

    folder: Path

    @contextmanager
    def full(self, *, but: int = 0) -> Iterator[None]:
        """No more than `but` bytes are left while the block lasts."""
        filler = self.folder / _FILLER
        try:
            with filler.open("wb") as file:
                wait_for(lambda: self._filled(file.fileno(), but), "the disk to be filled")
            yield
        finally:
            filler.unlink()

    def _filled(self, file: int, but: int) -> bool:
        """Take what is left; not done if somebody else took some of it just before."""
        space = os.statvfs(self.folder)
        try:
            os.posix_fallocate(file, 0, space.f_bavail * space.f_frsize - but)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
        return True

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing can be written while the block lasts."""
        run_command(["mount", "-o", "remount,ro", str(self.folder)])
        try:
            yield
        finally:
            run_command(["mount", "-o", "remount,rw", str(self.folder)])


@contextmanager
def small_disk(folder: Path, megabytes: int = 64) -> Iterator[SmallDisk]:
    """A memory disk at `folder`, which is made; everything on it goes when the block ends."""
    folder.mkdir(parents=True)
    run_command(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)])
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: a reader that still has a file open must not keep the mount alive for the next run.
        run_command(["umount", "--lazy", str(folder)])
