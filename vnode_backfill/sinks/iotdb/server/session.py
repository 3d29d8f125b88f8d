"""Keeps one session with an IoTDB server, which survives the server's absence, and asks its tree of series.

What must be true: a call either has had its effect, or raises; a lost answer does not count as success. Every call here
may be repeated (a write of the same points, a delete, a question). So a lost connection is opened again and the call is
made again, with growing waits. After that the error is retryable for the whole epoch. What the server refuses for good
is not repeated.

The client's own tablet class is not used: it cuts trailing NUL characters off text and bytes, and walks all times in
Python.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from iotdb.Session import Session
from iotdb.utils.exception import IoTDBConnectionException, StatementExecutionException
from thrift.Thrift import TApplicationException, TException

from vnode_backfill.config.iotdb import IotdbType
from vnode_backfill.sinks.iotdb.server.address import IotdbAddress, refuse_certificate
from vnode_backfill.sinks.iotdb.server.paths import Nodes, path_of, quoted, split_path
from vnode_backfill.sinks.iotdb.values import WIRE_TYPES, Ints, Precision
from vnode_backfill.words.errors import BackfillError, SinkError, SinkUnavailableError

Result = TypeVar("Result")

_TRIES = 6
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 8.0
_PASSING = frozenset({"301", "305", "306", "600", "602", "606", "611", "719"})
"""A server that has just started ("no available region group"), internal and dispatch errors, read-only, storage not
ready, a write rejected for lack of memory, disk full, a question that finds too little memory beside others."""
_DONE, _NOT_ALLOWED = 200, "803"
_FETCH_ROWS = 20_000
_BYTES = (IotdbType.TEXT, IotdbType.STRING, IotdbType.BLOB)


@dataclass(frozen=True, slots=True)
class Tablet:
    """Points of one device, or rows of one table, encoded; has the methods that the client calls on a tablet."""

    target: str
    measurements: list[str]
    types: list[int]
    values: bytes
    times: bytes
    rows: int
    categories: list[int] = field(default_factory=list)
    """Of a table's columns: what of them are tags and what are fields."""

    def get_insert_target_name(self) -> str:
        return self.target

    def get_measurements(self) -> list[str]:
        return self.measurements

    def get_data_types(self) -> list[int]:
        return self.types

    def get_binary_values(self) -> bytes:
        return self.values

    def get_binary_timestamps(self) -> bytes:
        return self.times

    def get_row_number(self) -> int:
        return self.rows

    def get_column_categories(self) -> list[int]:
        return self.categories


@dataclass(frozen=True, slots=True)
class Series:
    """A time series of the server."""

    device: Nodes
    measurement: str
    kind: str


@dataclass(frozen=True, slots=True)
class StoredPoints:
    """Points as they were read: row number n is of `devices[device[n]]` at `times[n]`."""

    devices: tuple[str, ...]
    device: Ints
    times: Ints
    values: pa.Table


class IotdbConnection:
    """Opened when first needed. Not for several threads at once."""

    def __init__(self, address: IotdbAddress, wait: Callable[[float], None] = time.sleep) -> None:
        self._address, self._wait = address, wait
        self._session: Session | None = None
        self.connections = 0
        """How often a connection was opened; a server that was restarted has ended the one before."""

    def execute(self, statement: str) -> None:
        self._run(f"`{statement[:200]}` failed", lambda session: session.execute_non_query_statement(statement))

    def flush(self, databases: Sequence[str]) -> bool:
        """Have what was written to these databases, to all if none is named, put into files; False if it is refused."""

        def write(session: Session) -> bool:
            try:
                session.execute_non_query_statement(f"FLUSH {', '.join(databases)}".strip())
            except StatementExecutionException as error:
                if str(error).partition(": ")[0] != _NOT_ALLOWED:
                    raise
                return False
            return True

        return self._run("the server cannot be flushed", write)

    def ask(self, statement: str) -> list[tuple[str | None, ...]]:
        """The rows of a listing, as text."""
        return self._run(f"`{statement[:200]}` failed", lambda session: list(_texts(session, statement)))

    def precision(self) -> Precision:
        """What one tick of the server's clock is."""
        variables = {row[0]: row[1] for row in self.ask("SHOW VARIABLES")}
        found = variables.get("TimestampPrecision")
        if found is None:
            raise SinkError(
                "the server does not say the precision of its times",
                detail=f"SHOW VARIABLES knows {', '.join(sorted(name or '' for name in variables))}.",
            )
        return Precision(found)

    def configuration(self, node: int) -> dict[str, str] | None:
        """What a node's settings' file says; None if the node cannot be asked or does not show it to this account."""

        def read(session: Session) -> dict[str, str] | None:
            # No statement asks for it, and the client has no method for the call of its protocol.
            client = session._Session__client
            try:
                answer = client.showConfiguration(node)
            except TApplicationException:
                # A server that does not know the call.
                return None
            if answer.status.code != _DONE:
                return None
            pairs = (line.partition("=") for line in answer.content.splitlines() if not line.startswith("#"))
            return {name.strip(): value.strip() for name, found, value in pairs if found}

        return self._run(f"the settings of node {node} cannot be read", read)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            # The server forgets a session by itself; there is nothing to lose by it.
            with suppress(IoTDBConnectionException, StatementExecutionException, TException, OSError):
                session.close()

    def _streamed(self, what: str, read: Callable[[Session], Iterator[StoredPoints]]) -> Iterator[StoredPoints]:
        """What `read` gives, piece by piece; not repeated, because half of it has been used."""
        try:
            yield from read(self._run(what, lambda session: session))
        except StatementExecutionException as error:
            code, _, reason = str(error).partition(": ")
            raise _refused(what, code, reason) from error
        except (IoTDBConnectionException, TException, OSError) as error:
            self.close()
            raise SinkUnavailableError(what, detail=str(error)) from error

    def _run(self, what: str, action: Callable[[Session], Result]) -> Result:
        for attempt in range(1, _TRIES + 1):
            try:
                return action(self._opened())
            except StatementExecutionException as error:
                code, _, reason = str(error).partition(": ")
                if code not in _PASSING or attempt == _TRIES:
                    raise _refused(what, code, reason) from error
            except (IoTDBConnectionException, TException, OSError) as error:
                self.close()
                refuse_certificate(self._address, error)
                if attempt == _TRIES:
                    raise SinkUnavailableError(
                        what,
                        detail=f"{self._address.host}:{self._address.port} did not answer {_TRIES} times: {error}",
                        hint="Check that the server runs and that `sink.iotdb.host`, `port` and `tls` are right.",
                    ) from error
            self._wait(min(_FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT) * random.uniform(0.5, 1.0))
        raise AssertionError("unreachable")

    def _opened(self) -> Session:
        if self._session is None:
            address = self._address
            with address.tls_options() as tls:
                session = Session(
                    address.host, address.port, address.user, address.password, fetch_size=_FETCH_ROWS, zone_id="UTC",
                    enable_redirection=False, connection_timeout_in_ms=int(address.timeout * 1000), **tls,
                )  # fmt: skip
                self._choose(session)
                session.open(False)
            self._session = session
            self.connections += 1
        return self._session

    def _choose(self, session: Session) -> None:
        """Say in which of the server's languages it is spoken to, before the session is opened."""


class IotdbSession(IotdbConnection):
    """Asks and changes the tree of series."""

    def insert(self, tablets: Sequence[Tablet], *, aligned: bool) -> None:
        """Write all points of the tablets; a point that is there is overwritten."""

        def write(session: Session) -> None:
            if len(tablets) == 1:
                (session.insert_aligned_tablet if aligned else session.insert_tablet)(tablets[0])
            else:
                (session.insert_aligned_tablets if aligned else session.insert_tablets)(list(tablets))

        self._run(f"points cannot be written to {tablets[0].target}", write)

    def delete(self, paths: Sequence[str], at: int) -> None:
        """Delete what these series hold at one time; also where there is nothing."""
        self._run(
            f"points cannot be deleted from {paths[0]} at {at}",
            lambda session: session.delete_data_in_range(list(paths), at, at),
        )

    def delete_series(self, pattern: str) -> None:
        """Remove every series that matches, with its points; none need to."""
        self._run(f"{pattern} cannot be removed", lambda session: session.delete_time_series([pattern]))

    def series(self, pattern: str) -> list[Series]:
        """Every series that matches."""
        found = []
        for row in self.ask(f"SHOW TIMESERIES {pattern}"):
            *device, measurement = split_path(row[0] or "")
            found.append(Series(tuple(device), measurement, (row[3] or "").lower()))
        return found

    def types(self, devices: Sequence[str], measurements: Sequence[str]) -> list[Series]:
        """Those of the series that exist, with their types, in one question that reads no point."""
        names = ", ".join(map(quoted, measurements))
        statement = f"SELECT {names} FROM {', '.join(devices)} WHERE time < {-(2**63) + 1}"

        def read(session: Session) -> list[Series]:
            answer = session.execute_query_statement(statement)
            try:
                columns = list(zip(answer.get_column_names(), answer.get_column_types(), strict=True))[1:]
            finally:
                answer.close_operation_handle()
            paths = [(split_path(name), kind.name.lower()) for name, kind in columns]
            return [Series(path[:-1], path[-1], kind) for path, kind in paths]

        return self._run("the types of series cannot be read", read)

    def points(
        self, devices: Sequence[str], measurements: Sequence[tuple[str, IotdbType]], where: str = ""
    ) -> list[StoredPoints]:
        """The points of these devices, of those measurements; a slot without any of them is left out."""
        names = ", ".join(quoted(name) for name, _ in measurements)
        statement = f"SELECT {names} FROM {', '.join(devices)} {where} ALIGN BY DEVICE"
        kinds = dict(measurements)
        return self._run(
            f"points of {devices[0]} cannot be read", lambda session: list(_blocks(session, statement, kinds))
        )

    def has_points(self, device: str) -> bool:
        """Whether a device holds anything at all."""
        return bool(self.ask(f"SELECT * FROM {device} LIMIT 1"))

    def scan(self, devices: Sequence[Nodes], measurements: Sequence[tuple[str, IotdbType]]) -> Iterator[StoredPoints]:
        """Like `points` of everything there is, piece by piece."""
        names, paths = ", ".join(quoted(name) for name, _ in measurements), ", ".join(map(path_of, devices))
        statement = f"SELECT {names} FROM {paths} ALIGN BY DEVICE"
        what = f"points of {path_of(devices[0])} cannot be read"
        yield from self._streamed(what, lambda session: _blocks(session, statement, dict(measurements)))


def _refused(what: str, code: str, reason: str) -> BackfillError:
    if code in _PASSING:
        return SinkUnavailableError(what, detail=f"The server says {code}: {reason[:1000]}")
    hints = {"801": "Check `sink.iotdb.user` and its password.", "607": "The point is older than the database's TTL."}
    return SinkError(what, detail=f"The server says {code}: {reason[:1000]}", hint=hints.get(code, ""))


def frames(session: Session, statement: str) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """The answer in pieces, values as the server sent them: text as bytes, instants and dates as numbers."""
    answer = session.execute_query_statement(statement)
    try:
        rows = answer.iotdb_rpc_data_set
        while answer.has_next():
            yield answer.get_column_names(), rows.data_frame
            rows.has_cached_data_frame, rows.data_frame = False, None
    finally:
        # The reader may have stopped because the server is lost; the server forgets the question by itself.
        with suppress(IoTDBConnectionException, TException, OSError):
            answer.close_operation_handle()


def _texts(session: Session, statement: str) -> Iterator[tuple[str | None, ...]]:
    for _, frame in frames(session, statement):
        for row in zip(*(frame[column] for column in frame.columns), strict=True):
            yield tuple(_text(value) for value in row)


def _text(value: object) -> str | None:
    if value is None or value is pd.NA:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


def _blocks(session: Session, statement: str, kinds: dict[str, IotdbType]) -> Iterator[StoredPoints]:
    for names, frame in frames(session, statement):
        paths = pa.array(frame[1].to_numpy(), pa.binary()).dictionary_encode()
        devices = tuple(path_of(split_path(path.decode())) for path in paths.dictionary.to_pylist())
        columns = {_measurement(name): frame[number] for number, name in enumerate(names) if number > 1}
        values = {
            name: read_column(columns[name], kind) if name in columns else pa.nulls(len(frame), WIRE_TYPES[kind])
            for name, kind in kinds.items()
        }
        times = frame[0].to_numpy().astype(np.int64)
        yield StoredPoints(devices, paths.indices.to_numpy().astype(np.int64), times, pa.table(values))


def _measurement(name: str) -> str:
    (only,) = split_path(name)
    return only


def read_column(values: pd.Series, kind: IotdbType) -> pa.Array:
    wire = WIRE_TYPES[kind]
    if kind in _BYTES:
        return pa.array(values.to_numpy(), pa.binary(), from_pandas=True).cast(wire)
    return pa.array(values.to_numpy(), wire, from_pandas=True)
