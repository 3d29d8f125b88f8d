"""Gives a JVM its settings by a file without a name, and keeps the JVM to this machine.

What must be true: no setting is on a command line, which every user of the machine can read, because `storage.options`
and `spark` hold keys of object stores. So Spark reads them from a temporary file that has no name and is this user's
alone; it is reached by its descriptor and goes with the processes that have it open. Only what the JVM itself is
started with (memory, Java options, class path) is put on its command line, by Spark.

On one machine nobody else has to reach the JVM: its ports are open on the loopback interface only, and Spark's own page
is off.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SENSITIVE = "(?i)secret|passw|token|credential|key|[.]sas[.]"
"""Names and values of settings that Spark hides on its environment page and in its event log.

Its own default knows no key of Azure's.
"""
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")


def keep_to_this_machine(packages: Path) -> None:
    """For a JVM and for workers that run here; variables that the user has set stay.

    Spark's page, where it is turned on, has no setting for its address but this variable. Workers are started as
    modules, for which Python searches the current folder first: that may be anybody's, unless the packages were
    imported from it.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if Path.cwd() != packages:
        os.environ.setdefault("PYTHONSAFEPATH", "1")


@contextmanager
def given_to_spark_submit(settings: Mapping[str, str]) -> Iterator[int]:
    """Have spark-submit, if started in this block, read these; the descriptor must be passed on to it."""
    before = os.environ.get(_ARGUMENTS)
    with tempfile.TemporaryFile("w", prefix="vnode-backfill-") as file:
        file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())
        file.flush()
        own = ["--properties-file", f"/dev/fd/{file.fileno()}", "--load-spark-defaults"]
        os.environ[_ARGUMENTS] = f"{shlex.join(own)} {before or 'pyspark-shell'}"
        try:
            yield file.fileno()
        finally:
            del os.environ[_ARGUMENTS]
            if before is not None:
                os.environ[_ARGUMENTS] = before


def _escaped(text: str) -> str:
    """As a file of Java properties has it: any sign but the plainest by its number."""
    return "".join(sign if sign in _PLAIN else _numbered(sign) for sign in text)


def _numbered(sign: str) -> str:
    units = sign.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
