"""Describes how the source cuts its table into partitions, in the server's own words.

The rows of a partition that is dropped can be deleted by its bounds only if these are known as they were at the
statement. The server forgets them when it drops the partition, and a job may be behind. So the job keeps them: those
of its beginning with the definition, later ones in its state, carried through every statement that changes them.

    PARTITION BY RANGE (to_days(`day`))     method RANGE, expression to_days(`day`)
      p1 VALUES LESS THAN (738000)          p1 738000
      p2 VALUES LESS THAN (738001)          p2 738001: it holds 738000, and all below once p1 is dropped
      p3 VALUES LESS THAN MAXVALUE          p3 MAXVALUE
"""

from __future__ import annotations

from dataclasses import dataclass

from vnode_backfill.words.errors import StateError

__all__ = ["NOT_KNOWN", "Partition", "Partitioning"]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition; `values` is what the server says of the values in it, None where nobody knows."""

    name: str
    values: str | None


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Method and expression as the server writes them, and the partitions in its order."""

    method: str
    expression: str
    partitions: tuple[Partition, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "method": self.method,
            "expression": self.expression,
            "partitions": [[each.name, each.values] for each in self.partitions],
        }

    @classmethod
    def from_json(cls, stored: object) -> Partitioning | None:
        """What `to_json` made; None where nothing is stored, as releases before this one left it."""
        if stored is None:
            return None
        if not isinstance(stored, dict) or not isinstance(stored.get("partitions"), list):
            raise StateError("the stored partitions of the table cannot be read")
        partitions = (Partition(str(name), None if values is None else str(values)) for name, values in
                      stored["partitions"])  # fmt: skip
        return cls(str(stored["method"]), str(stored["expression"]), tuple(partitions))


NOT_KNOWN = Partitioning("", "")
"""Of a table that is not partitioned, or whose partitions nobody can say any more."""
