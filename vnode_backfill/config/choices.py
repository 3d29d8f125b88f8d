"""Lists the values of keys that are one of a few words.

They are apart from the sections that hold them, because a job and a single table of it may say the same things.
"""

from __future__ import annotations

from enum import StrEnum


class StartupMode(StrEnum):
    """Where a job begins when it has saved no progress."""

    INITIAL = "initial"
    """Copy the table, then follow the log: one job."""
    LATEST = "latest"
    """Follow the log from now; copy nothing."""
    SPECIFIC = "specific"
    """Follow the log from a given position, GTID set, or another job's handoff; copy nothing."""
    EARLIEST = "earliest"
    """Follow the log from the oldest position the server holds; copy nothing."""
    TIMESTAMP = "timestamp"
    """Follow the log from a moment; copy nothing."""
    SNAPSHOT = "snapshot"
    """Copy the table to one consistent offset, store it as the handoff, and end."""


class Executor(StrEnum):
    """How the table is copied: by vnodes over many workers, or by one reader in the server's own order."""

    PARALLEL = "parallel"
    SINGLE = "single"


class MergeMode(StrEnum):
    """How rows of a Delta target are changed: deletion vectors beside its files, or files written again."""

    VECTORS = "vectors"
    REWRITE = "rewrite"


class ZeroDates(StrEnum):
    """What becomes of `0000-00-00` and its like, which no target can hold."""

    NULL = "null"
    ERROR = "error"


class SchemaChanges(StrEnum):
    """What a job does at a statement that changes its table."""

    FOLLOW = "follow"
    STOP = "stop"
    """Stop before the statement, until somebody accepts it."""


class DroppedColumns(StrEnum):
    """What becomes of a column in the target once the source has dropped it."""

    KEEP = "keep"
    DROP = "drop"


class DroppedPartitions(StrEnum):
    """What becomes of rows in the target whose partition the source has dropped or truncated."""

    DELETE = "delete"
    """By the partition's bounds where they are certain; otherwise the whole table is copied again."""
    KEEP = "keep"
    REREAD = "reread"
    """The whole table is copied again."""


class TlsVerify(StrEnum):
    """What of the server's certificate is checked: issuer and host name, issuer only, nothing."""

    IDENTITY = "identity"
    CA = "ca"
    NONE = "none"


class NewTables(StrEnum):
    """What happens when a table appears that a pattern of the job matches."""

    ADD = "add"
    REPORT = "report"
    """It is named, and not copied."""
