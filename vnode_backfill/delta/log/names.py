"""Reads the names in the log's folder: which commits and checkpoints there are.

A checkpoint of several files counts when all of them are there. Compacted commits, checksums, and what somebody else
keeps in the folder are passed over: commits and checkpoints say everything.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_OTHER_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-fA-F-]{36}\.(?:parquet|json)")
_OF_A_VERSION = re.compile(r"(\d{20})\.[^/]*")


def commit_name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def hint_of(data: bytes | None) -> int | None:
    """The version that `_last_checkpoint` names; None if it cannot be read."""
    try:
        version = json.loads(data or b"")["version"]
    except (ValueError, TypeError, KeyError):
        return None
    return version if isinstance(version, int) and version >= 0 else None


def version_of(name: str) -> int | None:
    """The version that a name of the log's folder belongs to."""
    found = _OF_A_VERSION.fullmatch(name)
    return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class LogNames:
    """The complete checkpoints by their versions, in order, and the newest version that has a commit or a
    checkpoint."""

    checkpoints: tuple[tuple[int, tuple[str, ...]], ...]
    newest: int = -1
    unknown_checkpoint: int = -1

    @classmethod
    def of(cls, names: Iterable[str]) -> LogNames:
        newest = unknown = -1
        parts: dict[tuple[int, int], set[str]] = defaultdict(set)
        for name in names:
            if found := _COMMIT.fullmatch(name):
                newest = max(newest, int(found[1]))
            elif found := _CHECKPOINT.fullmatch(name):
                parts[int(found[1]), int(found[3] or 0)].add(f"{LOG}/{name}")
            elif found := _OTHER_CHECKPOINT.fullmatch(name):
                unknown = max(unknown, int(found[1]))
        whole = {version: tuple(sorted(held)) for (version, count), held in parts.items() if len(held) == (count or 1)}
        return cls(tuple(sorted(whole.items())), max([newest, *whole]), unknown)

    @property
    def checkpoint_version(self) -> int:
        """That of the newest checkpoint, -1 if there is none."""
        return self.checkpoints[-1][0] if self.checkpoints else -1

    @property
    def checkpoint(self) -> tuple[str, ...]:
        """The files of the newest checkpoint."""
        return self.checkpoints[-1][1] if self.checkpoints else ()
