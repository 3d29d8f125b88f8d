"""Opens the Spark session that a command runs in, with what the protocol needs, and never against what spark-submit
said.

A master given by spark-submit is kept. Without one the job runs locally, with a task slot for each worker, each log
reader and the merge: fewer slots would make the log wait for the snapshot. Tasks write and read Delta tables without
the JVM, so no command needs Delta's jars; a user who gives them to Spark can read the same tables in the same session,
with the same access (`storage.options`).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.spark.class_archive import with_kept_classes
from vnode_backfill.spark.early_daemon import DaemonAhead
from vnode_backfill.spark.hadoop_options import hadoop_settings
from vnode_backfill.spark.jvm import (
    JvmWatch,
    end_spark,
    ends_with_driver,
    is_local,
    jvm_end,
    quiet_accumulators,
    starting,
)
from vnode_backfill.spark.jvm_settings import LOCAL_SETTINGS, SENSITIVE, given_to_spark_submit, keep_to_this_machine
from vnode_backfill.spark.ship_code import ship_packages
from vnode_backfill.spark.slots import given_session, known_slots, local_master, process_ends, submitted
from vnode_backfill.spark.tasks import given_up
from vnode_backfill.words.errors import BackfillError, ConfigError, SparkLostError, SparkStartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.scheduler.mode": "FAIR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.redaction.regex": SENSITIVE,
}
TASK_DAEMON = "vnode_backfill.spark.daemon"
"""The names of daemons of sinks that load more begin with this one."""
LOCAL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms64m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=30"
"""This JVM hands tasks to Python and sees no rows.

The full compiler only costs: 9 CPU-seconds became 17 before the first range was read. A heap that begins as a share of
the machine's memory is filled before it is first cleaned: 318 MB of the JVM became 228 MB, for the
same CPU (one copy each, the second also with `-Xss512k`).
"""
_LAUNCHER_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Of the small JVM by which spark-submit finds out how to start the other one: 0.35 CPU-seconds became 0.23."""
START_SECONDS = 300.0
"""A JVM of this machine that has not started after this time hangs. Usually it takes five to ten seconds."""
_LOOK_SECONDS = 0.2
_LONGEST_NOISE = 1000
_FORCED = {
    # A task that runs twice at the same time would hold two connections for one worker and write files twice.
    "spark.speculation": "false",
}


Started = tuple[SparkContext, JvmWatch]


def open_session(
    config: Config, master: str | None, *, quiet: bool, daemon: DaemonAhead, daemon_module: str = TASK_DAEMON
) -> SparkContext:
    """The session of this process, which `daemon` may serve; `master` is ignored where spark-submit has given one.

    Only its context: tasks need no SQL, and a SparkSession loads the classes of SQL (1.2 to 2.0 CPU-seconds).
    """
    if submitted():
        # What spark-submit was told is in its JVM: before the connection to it a SparkConf is empty and hides it.
        SparkContext._ensure_initialized()
    conf = _configured(config, master, daemon_module)
    _reserve(daemon, conf)
    if not submitted():
        start_jvm(conf, quiet=quiet)
    spark = SparkContext.getOrCreate(conf)
    spark.setLogLevel("ERROR")
    quiet_accumulators(spark)
    if not is_local(spark.master):
        ship_packages(spark)
    return spark


def _reserve(daemon: DaemonAhead, conf: SparkConf) -> None:
    """Only for workers that run with this Python and its environment.

    A JVM that runs already does not know where the daemon will be.
    """
    module = conf.get("spark.python.daemon.module")
    own = ("spark.pyspark.python", "spark.executorEnv.")
    if os.environ.get("PYSPARK_PYTHON") != sys.executable or any(name.startswith(own) for name, _ in conf.getAll()):
        return
    with SparkContext._lock:
        if SparkContext._gateway is None and _is_ours(module):
            daemon.reserve(module)


def _configured(config: Config, master: str | None, daemon_module: str = TASK_DAEMON) -> SparkConf:
    conf = SparkConf()
    settings = {**SETTINGS, **hadoop_settings(reveal(config.storage.options))}
    for name, value in {**settings, "spark.sql.shuffle.partitions": str(_shuffle_partitions(config))}.items():
        conf.setIfMissing(name, value)
    if not conf.contains("spark.master"):
        conf.setMaster(master or local_master(config))
    conf.setIfMissing("spark.app.name", f"vnode-backfill {config.job}")
    for name, value in {**reveal(config.spark), **_FORCED}.items():
        conf.set(name, value)
    if not is_local(conf.get("spark.master")):
        return conf
    for name, value in LOCAL_SETTINGS.items():
        conf.setIfMissing(name, value)
    if not submitted():
        conf.setIfMissing("spark.python.daemon.module", daemon_module)
        conf.set(
            "spark.driver.extraJavaOptions", with_kept_classes(conf.get("spark.driver.extraJavaOptions", LOCAL_JVM))
        )
        keep_to_this_machine(Path(__file__).resolve().parents[2])
        # Otherwise Spark takes the first `python3` of the search path, which need not be the one that runs this.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _LAUNCHER_JVM)
    return conf


def _is_ours(module: str | None) -> TypeGuard[str]:
    return module is not None and module.startswith(TASK_DAEMON)


class StartingSession:
    """A session that is starting, or that starts when it is first asked for.

    A caller that asks for it has done what it could meanwhile, so the workers' daemon is loaded then. Its JVM is
    watched from the moment there is one. With `slots` it may never be needed, and they are how many tasks it could run.
    """

    def __init__(
        self,
        start: Callable[[], Future[Started]],
        daemon: DaemonAhead,
        *,
        owned: bool = True,
        slots: int | None = None,
        here: bool = False,
    ) -> None:
        """`here` says that its JVM starts on this machine, which is a matter of seconds: a cluster may have a queue."""
        self._start, self._daemon, self._owned = start, daemon, owned
        self.slots, self._here = slots, here or slots is not None
        self.excused: Callable[[], bool] = lambda: False
        """Whether the driver ends by itself although its JVM has ended: it was asked to stop."""
        self._lock = threading.Lock()
        self._session: Future[Started] | None = None
        self._asked_for = self._ended = False
        self._began_at = 0.0
        self._late: SparkLostError | None = None
        if slots is None:
            self.begin()

    def begin(self) -> Future[Started]:
        """Start it, if nobody has; returns at once."""
        with self._lock:
            return self._begun()

    def _begun(self) -> Future[Started]:
        if self._session is None:
            self._began_at = time.monotonic()
            self._session = self._start()
            self._session.add_done_callback(self._watched)
        return self._session

    def result(self, timeout: float) -> SparkContext:
        """The session, waited for no longer than `timeout`: raises TimeoutError, or says that it will not come."""
        try:
            return self._asked().result(timeout)[0]
        except TimeoutError:
            self._check_awaited()
            raise

    @property
    def sparkContext(self) -> SparkContext:  # noqa: N802 - Spark's own word
        """For tasks of a job that runs: to it, one that cannot be started is like one whose JVM has ended.

        So is one that has not started after `START_SECONDS`. A caller whose group of jobs was given up waits no longer.
        """
        try:
            return self._awaited()
        except SparkStartError as error:
            raise _as_lost(error) from error

    def required(self) -> SparkContext:
        """The session, asked for before anything is written: one that cannot be had is a wrong configuration."""
        try:
            return self._awaited()
        except SparkStartError as error:
            raise ConfigError(error.message, detail=error.detail, hint=error.hint) from error

    def _awaited(self) -> SparkContext:
        session = self._asked()
        while not session.done():
            self._check_awaited()
            wait([session], _LOOK_SECONDS)
        if self._late is not None:
            raise self._late
        return session.result()[0]

    def done(self) -> bool:
        return self._session is not None and self._session.done()

    @property
    def up(self) -> SparkContext | None:
        """The context, if there is one by now."""
        found = self._up()
        return None if found is None else found[0]

    @property
    def lost(self) -> SparkLostError | None:
        """How the JVM has ended, as its watch has seen it, or why it could not be started although a task needed it.

        None if it lives, or was not needed yet.
        """
        found = self._up()
        return self._late or (self._not_started() if found is None else found[1].lost)

    def found_lost(self) -> SparkLostError | None:
        """The same, looked for now."""
        found = self._up()
        return None if found is None else found[1].lost or jvm_end(found[0], seconds=1.0)

    def end(self) -> None:
        """Stop a session that was asked for; one that was not ends with this process.

        So does one of a process that ends now: its JVM stops Spark by itself, and nobody waits the second it takes.

        One that is still starting is not waited for. When it comes up only its watch is closed: this process may live
        on, and the watch would end it with the JVM. The session itself stays: the next run of this process may be using
        it by then.
        """
        self._ended = True
        found = self._up()
        if found is None:
            return
        spark, watch = found
        watch.close()
        if self._asked_for and self._owned and not (process_ends() and ends_with_driver(spark)):
            end_spark(spark)

    def _asked(self) -> Future[Started]:
        """One that was begun because it may be needed, and that failed, is tried again now that it is needed."""
        with self._lock:
            if self.slots is not None and not self._asked_for and self._has_failed():
                self._session = None
            session = self._begun()
            self._asked_for = True
        self._daemon.load()
        return session

    def _check_awaited(self) -> None:
        """Raise if the session that is starting is of no use any more, to this caller or to all."""
        error = given_up()
        if error is not None:
            raise error
        if self._here and time.monotonic() > self._began_at + START_SECONDS:
            self._late = self._late or SparkLostError(
                f"Spark has not started after {START_SECONDS:.0f} s",
                detail="Its JVM hangs, or the machine has no time for it. Nothing that was committed is lost.",
                hint="Run it again: a job continues where it was. Look whether the machine is short of memory or disk.",
            )
            raise self._late

    def _up(self) -> Started | None:
        session = self._session
        if session is None or not session.done() or session.exception() is not None:
            return None
        return session.result()

    def _not_started(self) -> SparkLostError | None:
        """Why it failed; a session that was only begun because it may be needed ends nothing."""
        if self.slots is not None and not self._asked_for:
            return None
        session = self._session
        error = session.exception() if session is not None and session.done() else None
        return _as_lost(error) if isinstance(error, BackfillError) else None

    def _has_failed(self) -> bool:
        return self._session is not None and self._session.done() and self._session.exception() is not None

    def _watched(self, session: Future[Started]) -> None:
        if session.exception() is None:
            watch = session.result()[1]
            watch.excused = self._is_excused
            if self._ended:
                watch.close()

    def _is_excused(self) -> bool:
        return self.excused()


def _as_lost(error: BackfillError) -> SparkLostError:
    if isinstance(error, SparkLostError):
        return error
    return SparkLostError(error.message, detail=error.detail, hint=error.hint)


def _as_started(given: SparkSession) -> StartingSession:
    """A session of somebody else's. What it was made with counts, except what would make the copy wrong."""
    context = given.sparkContext
    if context.getConf().get("spark.speculation", "false") != "false":
        raise ConfigError(
            "the session has spark.speculation on: a task that runs twice would hold two connections for one worker",
            hint="Make the session with spark.speculation=false.",
        )
    if not is_local(context.master):
        ship_packages(context)
    started: Future[Started] = Future()
    started.set_result((context, JvmWatch(context, owned=False)))
    return StartingSession(lambda: started, DaemonAhead(), owned=False)


@contextmanager
def session_starting(
    config: Config, master: str | None, *, quiet: bool, daemon_module: str, at_once: bool = True
) -> Iterator[StartingSession]:
    """The session of a job, on its way while the caller does what needs no Spark: a JVM takes seconds to start, and a
    source to be examined. Without `at_once` a session of this machine waits for the first task.

    Where the caller fails, nobody waits for a session that is not up yet: the JVM ends with this process. Where it
    fails because the JVM has ended, that is the reason, whatever broke first.
    """
    if (given := given_session()) is not None:
        started = _as_started(given)
        try:
            yield started
        finally:
            started.end()
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="session")
    daemon = DaemonAhead()
    opening = partial(open_session, config, master, quiet=quiet, daemon=daemon, daemon_module=daemon_module)
    known = known_slots(config, master)
    session = StartingSession(
        lambda: pool.submit(_warm_session, opening, config, daemon),
        daemon,
        slots=None if at_once else known,
        here=known is not None,
    )
    try:
        yield session
    except BackfillError:
        raise
    except Exception as error:
        lost = session.found_lost()
        if lost is None:
            raise
        raise lost from error
    finally:
        daemon.close()
        session.end()
        pool.shutdown(wait=False)


def _warm_session(opening: Callable[[], SparkContext], config: Config, daemon: DaemonAhead) -> Started:
    """A session that has run a task.

    On one machine the process that workers are forked from takes two seconds to load.
    """
    try:
        with starting():
            spark = opening()
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkStartError(
            "Spark could not be started",
            detail=_without_secrets(_reason(str(error)), config)[:_LONGEST_NOISE],
            hint="Check --master and the keys under `spark`, and that JAVA_HOME names a Java that this Spark supports.",
        ) from None
    watch = JvmWatch(spark)
    if _is_ours(spark.getConf().get("spark.python.daemon.module", "")):
        daemon.load()
        threading.Thread(target=_first_task, args=(spark,), daemon=True).start()
    return spark, watch


def _reason(said: str) -> str:
    """What Spark or its JVM said, without the places in its code: the first exception, else the last lines."""
    lines = [line.strip().lstrip(": ") for line in said.splitlines()]
    lines = [
        line for line in lines if line and not re.match(r"at |\.\.\. |An error occurred while|.*\b(WARN|INFO)\b", line)
    ]
    named = [line for line in lines if re.search(r"\w(Exception|Error): ", line)]
    return re.sub(r'^Exception in thread "[^"]*" ', "", named[0]) if named else " ".join(lines[-3:])


def _without_secrets(text: str, config: Config) -> str:
    settings = {name: value for name, value in reveal(config.spark).items() if re.search(SENSITIVE, name)}
    for secret in {*reveal(config.storage.options).values(), *settings.values()} - {""}:
        text = text.replace(secret, "(hidden)")
    return text


def _first_task(spark: SparkContext) -> None:
    with suppress(Exception):  # whatever is wrong shows again, with its reason, in the first task of the job
        spark.parallelize([0], 1).map(abs).collect()


def start_jvm(conf: SparkConf, *, quiet: bool = True) -> None:
    """Start the JVM with these settings; if quiet, with what it prints in a file.

    Its greetings would tear the progress display apart.
    """
    with SparkContext._lock:
        if SparkContext._gateway is not None:
            return
    with (
        given_to_spark_submit(dict(conf.getAll())) as settings,
        tempfile.TemporaryFile(prefix="vnode-backfill-spark-") as noise,
    ):
        try:
            quietly = {"stdout": noise, "stderr": noise} if quiet else {}
            gateway = launch_gateway(None, {"pass_fds": [settings], **quietly})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            noise.seek(0)
            raise OSError(noise.read().decode(errors="replace").strip() or str(error)) from error
    SparkContext._ensure_initialized(gateway=gateway)


def _shuffle_partitions(config: Config) -> int:
    return max(2, min(config.workers, 200))
