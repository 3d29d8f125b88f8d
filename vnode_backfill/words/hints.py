"""Words what an operator is told to do next, for a job of one table and for one table of many.

Whoever finds a fault knows nothing of other tables, and words its hint for a job of its own: ask, then run the job. In a
job of many tables that would be wrong. Without `--table` a command is about all of them, `drop` removes the whole job,
and the driver goes on with the others, so that a second `run` is refused. `for_table` says it for one table of many. It
is called where such a table reports its failure, and nowhere else, so that every face shows the same words.

Hints travel as text, from Spark tasks too. So the sentences that differ are here, whole, and are found again by their
text. A command that is named in backticks gets the table's name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

__all__ = [
    "CHANGE_OPTIONS", "CONTINUES", "FOLLOWS_COLUMNS", "KEY_GONE", "NEW_COPY", "NEW_COPY_IN_PLACE", "READ_AGAIN",
    "RUN_AGAIN", "RUN_ENDS", "RUN_FOLLOWS", "TAKES_UP", "THEN_RUN", "accept", "for_new_table", "for_table",
]  # fmt: skip

_TAKEN_UP = "A running driver takes it up within seconds; if none runs, run the job."
_RESUME = "`vnode-backfill resume` takes the table up again; if no driver runs, run the job"
_AND_RUN = ", and run the job again."

NEW_COPY = f"Ask for a new copy with `vnode-backfill resnapshot --all`{_AND_RUN}"
READ_AGAIN = (
    "Ask for `vnode-backfill resnapshot --all` and run the job again: "
    "it reads the table again and follows the log from then on. "
    "Where `executor` is single, which cannot do that: "
    "`vnode-backfill drop`, then run it with `sink.delta.replace: true`."
)
"""The hint for a job that cannot continue where it is in the log; the only one, wherever that is found out."""
KEY_GONE = (
    "Run the job: it follows the statement that changed the key. If none was logged, ask for a new copy "
    "with `vnode-backfill resnapshot --all` first."
)
CHANGE_OPTIONS = " in sink.iotdb, and run the job again."
NEW_COPY_IN_PLACE = (
    "For a new copy set `sink.iotdb.replace: true`, ask for it with `vnode-backfill resnapshot --all`, and run the job."
)
TAKES_UP = "`resume` takes the table up again"
CONTINUES = "Run it again: it continues where it was."
FOLLOWS_COLUMNS = "Run the job again: it carries out the change of columns first."
RUN_FOLLOWS = "Run the job: it follows the statement that changed the table."
RUN_ENDS = "Run the job: it ends where the table ended, and copies the table again when it is there again."
THEN_RUN = "Then run it again."
RUN_AGAIN = "Run it again."


def accept(at: str) -> str:
    """The hint for a statement that the job may pass only if somebody accepts it."""
    return f"Accept it with `vnode-backfill resume --config … --accept {at}`{_AND_RUN}"


_RESTART = "then end the driver with `vnode-backfill stop`, if one runs, and run the job."
_AMONG_MANY: Mapping[str, str] = {
    READ_AGAIN: "Ask for `vnode-backfill resnapshot --all`: "
    f"it reads the table again and follows the log from then on. {_TAKEN_UP}",
    KEY_GONE: "The job follows the statement that changed the key. If none was logged, ask for a new copy "
    f"with `vnode-backfill resnapshot --all`. {_TAKEN_UP}",
    CHANGE_OPTIONS: f" in sink.iotdb, {_RESTART}",
    NEW_COPY_IN_PLACE: "For a new copy set `sink.iotdb.replace: true`, ask for it with "
    f"`vnode-backfill resnapshot --all`, {_RESTART}",
    _AND_RUN: f". {_TAKEN_UP}",
    TAKES_UP: "`vnode-backfill resume` takes the table up again",
    CONTINUES: f"{_RESUME}: it continues where it was.",
    FOLLOWS_COLUMNS: f"{_RESUME}: it carries out the change of columns first.",
    RUN_FOLLOWS: f"{_RESUME}: it follows the statement that changed the table.",
    RUN_ENDS: f"{_RESUME}: the table ends where it was dropped, and is copied again when it is there again.",
    THEN_RUN: f"Then {_RESUME}.",
    RUN_AGAIN: f"{_RESUME}.",
}
"""What replaces a sentence, those that hold another one first."""
_NEXT_RUN = "End the driver with `vnode-backfill stop`, if one runs, and run the job."
_COMMAND = re.compile(r"`(vnode-backfill (?:resnapshot|resume)\b[^`]*)`")


def for_table(hint: str, table: str) -> str:
    """The hint, for a table of a job of many; as it is if `table` is empty, which is so of a job of one table.

    A hint that was worded so already stays as it is.
    """
    if not table or "--table" in hint:
        return hint
    for alone, among in _AMONG_MANY.items():
        hint = hint.replace(alone, among)
    # A name may hold what a shell would read.
    named = shlex.quote(table)
    return _COMMAND.sub(lambda found: f"`{found[1]} --table {named}`", hint)


def for_new_table(hint: str) -> str:
    """The hint, for a table of many that has no state yet: no request can go to it, so the next run tries it again."""
    return hint.replace(RUN_AGAIN, _NEXT_RUN)
