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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeGuard

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.spark.class_archive import with_kept_classes
from vnode_backfill.spark.early_daemon import DaemonAhead
from vnode_backfill.spark.hadoop_options import hadoop_settings
from vnode_backfill.spark.jvm import JvmWatch, end_session, jvm_end, quiet_accumulators, starting
from vnode_backfill.spark.jvm_settings import LOCAL_SETTINGS, SENSITIVE, given_to_spark_submit, keep_to_this_machine
from vnode_backfill.spark.ship_code import ship_packages
from vnode_backfill.spark.slots import given_session, local_master, submitted
from vnode_backfill.words.errors import BackfillError, ConfigError, SparkLostError, SparkStartError

_SETTINGS = {
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
_LONGEST_NOISE = 1000
_FORCED = {
    # A task that runs twice at the same time would hold two connections for one worker and write files twice.
    "spark.speculation": "false",
}


def open_session(
    config: Config, master: str | None, *, quiet: bool, daemon: DaemonAhead, daemon_module: str = TASK_DAEMON
) -> SparkSession:
    """The session of this process, which `daemon` may serve; `master` is ignored where spark-submit has given one."""
    if submitted():
        # What spark-submit was told is in its JVM: before the connection to it a SparkConf is empty and hides it.
        SparkContext._ensure_initialized()
    conf = _configured(config, master, daemon_module)
    _reserve(daemon, conf)
    if not submitted():
        start_jvm(conf, quiet=quiet)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    quiet_accumulators(session.sparkContext)
    if not _is_local(session.sparkContext.master or ""):
        ship_packages(session.sparkContext)
    return session


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
    settings = {**_SETTINGS, **hadoop_settings(reveal(config.storage.options))}
    for name, value in {**settings, "spark.sql.shuffle.partitions": str(_shuffle_partitions(config))}.items():
        conf.setIfMissing(name, value)
    if not conf.contains("spark.master"):
        conf.setMaster(master or local_master(config))
    conf.setIfMissing("spark.app.name", f"vnode-backfill {config.job}")
    for name, value in {**reveal(config.spark), **_FORCED}.items():
        conf.set(name, value)
    if not _is_local(conf.get("spark.master") or ""):
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
    return conf


def _is_ours(module: str | None) -> TypeGuard[str]:
    return module is not None and module.startswith(TASK_DAEMON)


def _is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process and folder."""
    return master == "local" or master.startswith("local[")


class StartingSession:
    """A session that is starting. A caller that asks for it has done what it could meanwhile, so the workers' daemon is
    loaded then.

    Its JVM is watched from the moment there is one; `watch` may be asked for when there is a result.
    """

    def __init__(
        self, session: Future[tuple[SparkSession, JvmWatch]], daemon: DaemonAhead, *, owned: bool = True
    ) -> None:
        self._session, self._daemon, self._owned = session, daemon, owned
        self._asked_for = False

    def result(self, timeout: float | None = None) -> SparkSession:
        self._asked_for = True
        self._daemon.load()
        return self._session.result(timeout)[0]

    def required(self) -> SparkSession:
        """The session, asked for before anything is written: one that cannot be had is a wrong configuration."""
        try:
            return self.result()
        except SparkStartError as error:
            raise ConfigError(error.message, detail=error.detail, hint=error.hint) from error

    @property
    def watch(self) -> JvmWatch:
        return self._session.result()[1]

    def done(self) -> bool:
        return self._session.done()

    def lost(self) -> SparkLostError | None:
        """How the JVM of a session that was up has ended; None if it lives."""
        if not self.done() or self._session.exception() is not None:
            return None
        session, watch = self._session.result()
        return watch.lost or jvm_end(session.sparkContext, seconds=1.0)

    def end(self) -> None:
        """Stop a session that was asked for; one that was not ends with this process."""
        if self.done() and self._session.exception() is None:
            session, watch = self._session.result()
            watch.close()
            if self._asked_for and self._owned:
                end_session(session)


def _as_started(given: SparkSession) -> StartingSession:
    """A session of somebody else's. What it was made with counts, except what would make the copy wrong."""
    context = given.sparkContext
    if context.getConf().get("spark.speculation", "false") != "false":
        raise ConfigError(
            "the session has spark.speculation on: a task that runs twice would hold two connections for one worker",
            hint="Make the session with spark.speculation=false.",
        )
    if not _is_local(context.master or ""):
        ship_packages(context)
    started: Future[tuple[SparkSession, JvmWatch]] = Future()
    started.set_result((given, JvmWatch(context, owned=False)))
    return StartingSession(started, DaemonAhead(), owned=False)


@contextmanager
def session_starting(
    config: Config, master: str | None, *, quiet: bool, daemon_module: str
) -> Iterator[StartingSession]:
    """The session of a job, on its way while the caller does what needs no Spark: a JVM takes seconds to start, and a
    source to be examined.

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
    session = StartingSession(pool.submit(_warm_session, opening, config, daemon), daemon)
    try:
        yield session
    except BackfillError:
        raise
    except Exception as error:
        lost = session.lost()
        if lost is None:
            raise
        raise lost from error
    finally:
        daemon.close()
        session.end()
        pool.shutdown(wait=False)


def _warm_session(
    opening: Callable[[], SparkSession], config: Config, daemon: DaemonAhead
) -> tuple[SparkSession, JvmWatch]:
    """A session that has run a task.

    On one machine the process that workers are forked from takes two seconds to load.
    """
    try:
        with starting():
            session = opening()
    except (PySparkException, Py4JError, OSError) as error:
        raise SparkStartError(
            "Spark could not be started",
            detail=_without_secrets(_reason(str(error)), config)[:_LONGEST_NOISE],
            hint="Check --master and the keys under `spark`, and that JAVA_HOME names a Java that this Spark supports.",
        ) from None
    watch = JvmWatch(session.sparkContext)
    if _is_ours(session.conf.get("spark.python.daemon.module", "")):
        daemon.load()
        threading.Thread(target=_first_task, args=(session.sparkContext,), daemon=True).start()
    return session, watch


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
