"""Holds a cut: one offset of the log at which all live targets of a job were, and the version that each had there.

Readers who join tables want all of them at one moment of the source. A target of a job is always a consistent cut of
its own table. At a cut the targets together are one: a transaction over several tables is in all of them or in none.

    offset binlog.000042:1234    shop.orders version 118, shop.items version 97    left out: shop.events (snapshot)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from consume_upstream.log.offset import CdcOffset
from vnode_backfill.words.errors import OffsetError, StateError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Target:
    """One target at a cut; `version` is None where the target has no versions."""

    sink: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    offset: CdcOffset
    at: datetime
    targets: Mapping[str, Target]
    left_out: Mapping[str, str]
    """Tables that are not part of it, and why."""

    def version_kept(self, name: str, sink: str, now: datetime, kept_for: timedelta) -> int | None:
        """The version of a table's target that readers may ask for still; None if the cut names none, or is too old.

        A table that has another target than at the cut is not meant.
        """
        target = self.targets.get(name)
        if target is None or target.sink != sink or now >= self.at + kept_for:
            return None
        return target.version

    def to_json(self) -> str:
        return json.dumps(
            {
                "v": _VERSION,
                "offset": self.offset.to_json(),
                "at": self.at.isoformat(),
                "targets": {name: [target.sink, target.version] for name, target in self.targets.items()},
                "left_out": dict(self.left_out),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Cut:
        try:
            stored = json.loads(text)
            if stored["v"] != _VERSION:
                raise StateError(f"a stored cut has the unknown version {stored['v']!r}")
            return cls(
                CdcOffset.from_json(stored["offset"]),
                datetime.fromisoformat(stored["at"]),
                {name: Target(str(sink), version) for name, (sink, version) in stored["targets"].items()},
                {str(name): str(why) for name, why in stored["left_out"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, OffsetError) as error:
            raise StateError("a stored cut cannot be read", detail=f"{error}: {text[:200]}") from error
