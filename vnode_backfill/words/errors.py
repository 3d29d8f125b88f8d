"""Names everything that can go wrong, and says whether trying again can help.

Every failure that leaves this package is one of these. `retryable` alone decides between a retry and a stop; nobody
parses a message.

    BackfillError
    ├── ConfigError                 a YAML value is wrong or missing; `path` names it            exit 2
    ├── PlanRefusedError            the source or the table cannot be copied exactly             exit 2
    │   └── KeyOrderError           keys cannot be ordered or encoded exactly in the client
    ├── BitmapError                 vnode bitmaps overlap, leave holes, or differ in length
    ├── OffsetError                 offsets of different servers, or text that is not one
    ├── LawBrokenError              a law of the protocol would be broken: a bug, never retried
    ├── StateError                  stored state is of an unknown version or contradicts itself
    │   ├── StateUnavailableError   the state cannot be reached or written just now              retryable
    │   └── FencedError             another driver owns the job now; this one must not commit
    ├── SourceError                 the database said no
    │   ├── SourceLostError         connection lost, time-out, server restarting                 retryable
    │   ├── ParentsChangeError      parents of the table are being replaced                      retryable
    │   ├── BinlogPurgedError       the log needed next is gone
    │   ├── LogFormatError          the log holds something that cannot be taken exactly
    │   └── SchemaChangedError      the table's definition no longer is the stored one
    ├── SinkError                   the target said no
    │   └── SinkUnavailableError    the target cannot be reached or written just now             retryable
    ├── OvertakenError              somebody else committed first; nothing of ours is in the table retryable
    │   └── BuriedError             ours is in it, and somebody else's is on top already
    ├── SparkStartError             Spark could not be started
    ├── SparkLostError              the JVM has ended; only a new driver has another one
    ├── StuckError                  something that must end does not; only a new process helps
    └── ActorError                  an actor ended without saying why                            retryable
"""

from __future__ import annotations

from typing import Self


class BackfillError(Exception):
    """An error a user can act on: what was attempted, the facts, and what helps."""

    retryable = False
    exit_code = 1

    def __init__(self, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.message]
        if self.detail:
            parts.append(f"  detail: {self.detail}")
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return _printable("\n".join(parts))

    def hinted(self, hint: str) -> Self:
        """The same error, with another hint."""
        return type(self)(self.message, detail=self.detail, hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep detail and hint when an error crosses from a Spark task to the driver."""
        return _rebuild, (type(self), self.message, self.detail, self.hint)


def _printable(text: str) -> str:
    """The text with control characters escaped: it may hold names of others, which a terminal must not obey."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _rebuild(kind: type[BackfillError], message: str, detail: str, hint: str) -> BackfillError:
    return kind(message, detail=detail, hint=hint)


class ConfigError(BackfillError):
    """A configuration value is wrong; the message starts with its YAML path."""

    exit_code = 2


class PlanRefusedError(BackfillError):
    """The job was refused before anything was written."""

    exit_code = 2


class KeyOrderError(PlanRefusedError):
    """Keys of this table cannot be ordered or encoded exactly in the client."""


class BitmapError(BackfillError):
    """Vnode bitmaps overlap, leave holes, or do not fit the vnode count."""

    exit_code = 2


class OffsetError(BackfillError):
    """Offsets that cannot be compared, or text that is not an offset."""


class LawBrokenError(BackfillError):
    """A law of the protocol would be broken; the message holds both values."""


class StateError(BackfillError):
    """Stored state is unreadable, of an unknown version, or contradicts itself."""


class StateUnavailableError(StateError):
    """The state cannot be reached or written at the moment."""

    retryable = True


class FencedError(StateError):
    """Another driver took over this job; nothing may be committed any more."""


class SourceError(BackfillError):
    """The source database refused or contradicted what was asked of it."""


class SourceLostError(SourceError):
    """The connection to the source was lost or timed out."""

    retryable = True


class ParentsChangeError(SourceError):
    """A parent of the table, by a foreign key, is being replaced: for now the table cannot be copied."""

    retryable = True


class BinlogPurgedError(SourceError):
    """The part of the log needed next is no longer held by the server."""


class LogFormatError(SourceError):
    """The log holds an event that cannot be decoded exactly."""


class SchemaChangedError(SourceError):
    """The table's definition no longer is the one stored with the job."""


class SinkError(BackfillError):
    """The sink refused a write or holds what it must not hold."""


class SinkUnavailableError(SinkError):
    """The sink cannot be reached or written at the moment."""

    retryable = True


class OvertakenError(BackfillError):
    """Somebody else committed to a table since the handle was opened; nothing of ours is in it.

    The writer that holds the handle catches it, opens the table again and decides again.
    """

    retryable = True


class BuriedError(OvertakenError):
    """Ours was written, and the table has a later version already.

    That version is on top of ours, if the handle was opened just before.
    """


class SparkStartError(BackfillError):
    """Spark could not be started: its master, its memory or another of its settings is wrong, or its Java."""


class SparkLostError(BackfillError):
    """The JVM of this driver's Spark has ended, or does not start: nothing can be run in it any more."""


class StuckError(BackfillError):
    """Something that must end before the job can continue does not end."""


class ActorError(BackfillError):
    """An actor ended without reporting why."""

    retryable = True
