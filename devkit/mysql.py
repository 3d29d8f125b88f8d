"""Starts private MySQL and MariaDB servers with a row-format binlog, on a free loopback port in a temporary folder.

    with MySqlServer({"max-binlog-size": "64K"}) as server:
        connection = server.connect()

A server is ready when it greets and answers a login, not when its port is open: the port listens earlier. `stop`,
`kill` and `restart` keep port and data; leaving the `with` block removes everything. However the owner ends, the server
ends with it (see `guard`). The data folder is initialised once per cache and copied for each server.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from devkit.cache import cached
from devkit.commands import run_command
from devkit.errors import DevkitError
from devkit.fetch import ServerHome, fetch_mariadb, fetch_mysql
from devkit.process import GuardedProcess, free_ports

START_SECONDS = 120
START_ATTEMPTS = 3

COMMON_OPTIONS: Mapping[str, str | None] = {
    "bind-address": "127.0.0.1",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "max-binlog-size": "1G",
    "sync-binlog": "0",
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-buffer-pool-size": "192M",
    # Many servers at once would use up the kernel's asynchronous I/O contexts.
    "innodb-use-native-aio": "OFF",
    "performance-schema": "OFF",
    "character-set-server": "utf8mb4",
    "default-time-zone": "+00:00",
    "max-allowed-packet": "1G",
    "local-infile": "1",
    "skip-name-resolve": "ON",
    "secure-file-priv": "",
}


class SqlServer(ABC):
    """What both servers have in common. `options` override the defaults; `None` takes a default away."""

    flavour: ClassVar[str]
    defaults: ClassVar[Mapping[str, str | None]]
    host = "127.0.0.1"
    user = "root"
    password = ""

    def __init__(self, options: Mapping[str, str | None] | None = None) -> None:
        self._options = _normalised(options or {})
        self._home: ServerHome | None = None
        self._folder: Path | None = None
        self._process: GuardedProcess | None = None
        self._port = 0
        self._refusal = ""

    @property
    def port(self) -> int:
        """The port, the same for all restarts."""
        return self._port

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise DevkitError(f"{self.flavour} server was not started")
        return self._folder

    @property
    def datadir(self) -> Path:
        return self.folder / "data"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        if self._process is None:
            raise DevkitError(f"{self.flavour} server was not started")
        return self._process.pid

    def start(self, options: Mapping[str, str | None] | None = None) -> Self:
        """Start and wait until it answers; on old data after `stop` or `kill`. Further options are kept."""
        if self.running:
            raise DevkitError(f"{self.flavour} server is already running on port {self.port}")
        self._options |= _normalised(options or {})
        if self._folder is None:
            self._prepare()
        new = self._port == 0
        try:
            self._launch(new)
        except DevkitError:
            # A server that never ran has nothing worth keeping; its log is in the error.
            if new:
                self.close()
                self._port = 0
            raise
        return self

    def stop(self) -> None:
        """Shut down in order and keep the data. A second call does nothing."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """End with SIGKILL, as a crash would, and keep the data."""
        if self._process is not None:
            self._process.kill()

    def restart(self, options: Mapping[str, str | None] | None = None) -> None:
        self.stop()
        self.start(options)

    def close(self) -> None:
        """Stop and remove the data. A second call does nothing."""
        # Nobody needs the data any more, so nobody waits for a flush.
        self.kill()
        self._remove()

    def connect(
        self,
        database: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        autocommit: bool = True,
        read_timeout: float | None = None,
        cursorclass: type[Cursor] = Cursor,
    ) -> Connection[Cursor]:
        """A plain pymysql connection, as root unless another user is given."""
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=user if user is not None else self.user,
            password=password if password is not None else self.password,
            database=database,
            charset="utf8mb4",
            autocommit=autocommit,
            local_infile=True,
            connect_timeout=10,
            read_timeout=read_timeout,
            cursorclass=cursorclass,
        )

    def log_tail(self) -> str:
        return "" if self._process is None else self._process.log_tail()

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _fetch(self) -> ServerHome:
        """The server's programs, downloaded once."""

    @abstractmethod
    def _initialise(self, home: ServerHome, datadir: Path) -> None:
        """An empty data folder, as a new server wants it."""

    def _prepare(self) -> None:
        home = self._fetch()
        template = cached(f"{home.flavour}-{home.version}-data", lambda target: self._initialise(home, target / "data"))
        # Unix socket paths end at 107 characters, so the folder is directly in the temporary folder.
        self._folder = Path(tempfile.mkdtemp(prefix=f"vb-{self.flavour}-"))
        shutil.copytree(template / "data", self.datadir)
        self._home = home

    def _launch(self, new: bool) -> None:
        for attempt in range(1, START_ATTEMPTS + 1):
            if new:
                (self._port,) = free_ports()
            try:
                self._launch_once()
                return
            except DevkitError as error:
                # Another process may have taken the port between the probe and the bind.
                taken = "address already in use" in error.detail.lower() or "same port" in error.detail.lower()
                if not (new and taken) or attempt == START_ATTEMPTS:
                    raise

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _launch_once(self) -> None:
        assert self._home is not None
        # A pid file left by a killed server would look like a running one.
        (self.datadir / "server.pid").unlink(missing_ok=True)
        self._process = GuardedProcess(
            self._command(self._home),
            log=self.folder / "server.log",
            environment=self._home.environment(),
            remove=self.folder,
        )
        what = f"{self.flavour} server on port {self.port}"
        self._process.wait_until(self._answers, seconds=START_SECONDS, what=what, reason=lambda: self._refusal)

    def _command(self, home: ServerHome) -> list[str]:
        own: dict[str, str | None] = {
            "datadir": str(self.datadir),
            "socket": str(self.folder / "server.sock"),
            "pid-file": str(self.datadir / "server.pid"),
            # A starting MariaDB deletes what looks like its own leftovers, also of other servers that share the folder.
            "tmpdir": str(self.folder),
            "port": str(self.port),
            "server-id": str(self.port),
        }
        options = {**COMMON_OPTIONS, **self.defaults, **own, **self._options}
        return [*_server_words(home), *(f"--{name}={value}" for name, value in options.items() if value is not None)]

    def _answers(self) -> bool:
        try:
            connection = self.connect(read_timeout=10)
        except pymysql.err.OperationalError as error:
            self._refusal = str(error)
            return False
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return True


class MySqlServer(SqlServer):
    """MySQL 8.0, GTID on."""

    flavour = "mysql"
    defaults: ClassVar[Mapping[str, str | None]] = {
        "mysqlx": "OFF",
        "gtid-mode": "ON",
        "enforce-gtid-consistency": "ON",
        "innodb-redo-log-capacity": "128M",
        "binlog-expire-logs-seconds": "0",
    }

    def _fetch(self) -> ServerHome:
        return fetch_mysql()

    def _initialise(self, home: ServerHome, datadir: Path) -> None:
        datadir.mkdir()
        accounts = datadir.with_name("accounts.sql")
        # Names are not resolved, so root@localhost does not cover a connection over TCP.
        accounts.write_text(
            "CREATE USER 'root'@'127.0.0.1' IDENTIFIED BY '';\n"
            "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        words = [*_server_words(home), f"--datadir={datadir}", "--innodb-redo-log-capacity=8M", "--skip-log-bin"]
        words += ["--innodb-use-native-aio=OFF", "--initialize-insecure", f"--init-file={accounts}"]
        run_command(words, environment=home.environment())
        # Every copy must make its own server UUID, or their GTIDs would be the same.
        (datadir / "auto.cnf").unlink(missing_ok=True)


class MariaDbServer(SqlServer):
    """MariaDB 10.11, whose GTIDs are always on."""

    flavour = "mariadb"
    defaults: ClassVar[Mapping[str, str | None]] = {
        "gtid-domain-id": "0",
        "gtid-strict-mode": "ON",
        "log-slave-updates": "ON",
        "binlog-annotate-row-events": "OFF",
        "expire-logs-days": "0",
        "innodb-log-file-size": "96M",
        "collation-server": "utf8mb4_general_ci",
        "ssl": "OFF",
    }

    def _fetch(self) -> ServerHome:
        return fetch_mariadb()

    def _initialise(self, home: ServerHome, datadir: Path) -> None:
        assert home.installer is not None
        words = [str(home.installer), "--no-defaults", f"--datadir={datadir}", "--skip-test-db"]
        words += ["--auth-root-authentication-method=normal", "--innodb-log-file-size=8M", *_run_as_root()]
        # The installed script knows where its files are; an unpacked one needs the path.
        words += [] if home.home == Path("/usr") else [f"--basedir={home.home}"]
        run_command(words, environment=home.environment())


def _server_words(home: ServerHome) -> list[str]:
    return [
        str(home.server),
        "--no-defaults",
        *_run_as_root(),
        f"--basedir={home.home}",
        f"--lc-messages-dir={home.messages}",
        *([f"--plugin-dir={home.plugins}"] if home.plugins else []),
    ]


def _run_as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _normalised(options: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name.replace("_", "-"): value for name, value in options.items()}
