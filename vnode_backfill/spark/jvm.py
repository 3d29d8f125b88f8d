"""Watches the JVM of this process's Spark, and ends the driver when the JVM has ended.

A driver without its JVM can read and merge little and copy nothing, and no call to Spark will ever succeed again. So
the end of the JVM is a definite failure: the driver ends with the reason and exit code 1, and a supervisor starts
another one. What must be true: that comes within seconds, whatever the driver does at that moment, and no process
stays. Why it is:

- The process is looked at where this driver has started it. Where spark-submit has, the JVM is asked through its
  gateway.
- A JVM that lives and does not answer (it was stopped, or it thrashes) is one that has ended. Ours is killed, which
  ends every wait for it. Answers are counted in looks and not by the clock: where the whole driver slept, its JVM slept
  too.
- The job hears of the loss and stops in order. Where the driver has not ended by itself a while later, because it plans
  or waits for somebody else, the watch prints the reason and ends the process.
- A driver that was asked to stop has more time: a stop needs no Spark, and a supervisor ends driver and JVM together.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from subprocess import Popen, TimeoutExpired

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from vnode_backfill.words.errors import SparkLostError

_LOOK_SECONDS = 0.5
_ASK_SECONDS = 2.0
_GRACE_SECONDS = 1.0
"""A supervisor signals the processes of a driver one after the other.

A stop may arrive just after the JVM has ended.
"""
_SILENT_LOOKS = 240
"""So many looks without an answer, two minutes of them.

Longer than any collection of garbage that is worth waiting for.
"""
_LAST_LOOKS = 30
_LAST_LOOKS_OF_A_STOP = 1200
_STOP_SECONDS = 30.0


def jvm_end(spark: SparkContext, *, seconds: float = 0.0) -> SparkLostError | None:
    """How the JVM has ended; None if it lives. One that is about to end is given `seconds` for it."""
    gateway = _gateway(spark)
    process = _process(gateway)
    if process is None:
        return _unreachable(gateway)
    with suppress(TimeoutExpired):
        return _lost(f"process {process.pid} {_how(process.wait(seconds))}")
    return None


def tasks_outlive(spark: SparkContext) -> bool:
    """Whether the JVM has ended and its tasks may not have.

    On a cluster they end when their executor has heard of it.
    """
    return not is_local(spark.master) and jvm_end(spark) is not None


@contextmanager
def starting() -> Iterator[None]:
    """Report what breaks while a session is opened as the loss of its JVM, if somebody has killed that."""
    try:
        yield
    except (Py4JError, PySparkException, OSError, EOFError) as error:
        process = None if SparkContext._gateway is None else _process(SparkContext._gateway)
        code = None if process is None else process.poll()
        if process is None or code is None or code >= 0:
            raise
        raise _lost(f"process {process.pid} {_how(code)}") from error


def _lost(detail: str) -> SparkLostError:
    return SparkLostError(
        "the JVM of Spark has ended, and the driver with it",
        detail=f"{detail[0].upper()}{detail[1:]}. Nothing that was committed is lost.",
        hint="Run it again: a job continues where it was. If the system has killed the JVM for memory, its log says "
        "so (`dmesg`): "
        "lower spark.driver.memory or limits.log_memory.",
    )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _gateway(spark: SparkContext) -> JavaGateway:
    gateway: JavaGateway = spark._gateway
    return gateway


def _process(gateway: JavaGateway) -> Popen[bytes] | None:
    """The JVM's process, if this one has started it."""
    process: Popen[bytes] | None = gateway.proc
    return process


def _unreachable(gateway: JavaGateway) -> SparkLostError | None:
    """For a JVM that somebody else has started: whether nobody listens at its gateway any more."""
    address = gateway.gateway_parameters.address, gateway.gateway_parameters.port
    try:
        socket.create_connection(address, timeout=_ASK_SECONDS).close()
    except TimeoutError:
        return None
    except OSError as error:
        return _lost(f"its gateway at {address[0]}:{address[1]} cannot be reached ({error})")
    return None


class JvmWatch:
    """Watches the JVM of a session until it is closed; `lost` is why it is of no use any more.

    `excused` says whether the driver ends by itself although its JVM has ended: it was asked to stop.
    """

    def __init__(self, spark: SparkContext, *, owned: bool = True) -> None:
        """A JVM that is not `owned` is never killed, and this process lives on when it has ended."""
        self._spark, self._process = spark, _process(_gateway(spark))
        self._owned = owned
        self.lost: SparkLostError | None = None
        self.excused: Callable[[], bool] = lambda: False
        self._closed = threading.Event()
        self._silent = 0
        self._doubted = False
        self._stopped = False
        for work in (self._ask, self._look):
            threading.Thread(target=work, name="jvm", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _ask(self) -> None:
        """Ask for a sign of life, in a thread of its own: an answer may never come."""
        while not self._closed.wait(_ASK_SECONDS):
            try:
                self._stopped = bool(self._spark._jsc.sc().isStopped())
                self._silent, self._doubted = 0, False
            except Exception:  # noqa: BLE001 - whatever it says, somebody else finds out what it means
                self._doubted = True

    def _look(self) -> None:
        lost = None
        while lost is None:
            if self._closed.wait(_LOOK_SECONDS):
                return
            self._silent += 1
            lost = self._end()
        if self._closed.wait(_GRACE_SECONDS):
            return
        self.lost = lost
        if self._owned:
            self._end_driver(lost)

    def _end(self) -> SparkLostError | None:
        if self._process is not None or self._doubted:
            lost = jvm_end(self._spark)
            if lost is not None:
                return lost
        if self._stopped:
            return _lost("its Spark application was ended from outside")
        if self._silent < _SILENT_LOOKS:
            return None
        if self._process is not None and self._owned:
            self._process.kill()
        return _lost(f"it has not answered for {_SILENT_LOOKS * _LOOK_SECONDS:.0f} s")

    def _end_driver(self, lost: SparkLostError) -> None:
        """Give the driver time to end in order, and end it."""
        looks = 0
        while looks < (_LAST_LOOKS_OF_A_STOP if self.excused() else _LAST_LOOKS):
            if self._closed.wait(_LOOK_SECONDS):
                return
            looks += 1
        print(f"vnode-backfill: {lost}", file=sys.stderr, flush=True)
        os._exit(lost.exit_code)


def ends_with_driver(spark: SparkContext) -> bool:
    """Whether the JVM is this process's own and ends when this process does: it then stops Spark by itself."""
    return is_local(spark.master) and _process(_gateway(spark)) is not None


def is_local(master: str | None) -> bool:
    """Whether tasks run in the driver's own machine and folder."""
    return master is not None and (master == "local" or master.startswith("local["))


def end_spark(spark: SparkContext) -> None:
    """Stop Spark, without a word and in bounded time: what it says now would hide why the command has ended."""

    def stop() -> None:
        with suppress(Exception):
            spark.stop()

    process = _process(_gateway(spark))
    stopping = threading.Thread(target=stop, name="spark-stop", daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)
    if stopping.is_alive() and process is not None:
        process.kill()


def quiet_accumulators(spark: SparkContext) -> None:
    """Spark's server for accumulators, which nothing here uses, prints a traceback when its JVM ends."""
    server = spark._accumulatorServer
    if server is not None:
        server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]  # noqa: ARG005
