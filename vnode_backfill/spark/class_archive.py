"""Names the file with the classes that Spark's JVM has loaded before, so that a job's JVM maps it instead of loading
them.

Loading and checking some twelve thousand classes is most of what a JVM does before its first task: 8.7 CPU-seconds
until then became 5.3. What must be true: no job depends on it. The JVM itself compares such a file with its own build
and with every jar, and continues without it where they differ. A file is whole from the moment it has its name, which
names the JVM and the Spark it was made for. And no job runs classes of another user: the file counts only where nobody
else can write it. `python -m vnode_backfill.spark.make_class_archive` makes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path

import pyspark

from vnode_backfill.config.cache_folder import cache_folder, is_private

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""What a JVM has to say about such a file it says on its standard output otherwise."""


def sharing_options() -> str:
    """The JVM's options for using the file, if there is one."""
    path = archive_path()
    return f"-XX:SharedArchiveFile={path} {QUIET}" if path is not None and may_be_used(path) else ""


def with_kept_classes(options: str | None) -> str:
    """Options of a JVM with the classes that are kept for it. What somebody says about such classes counts."""
    options = options or ""
    chosen = "SharedArchiveFile" in options or "-Xshare" in options
    # In front: what is said later counts, and ours turns the JVM's own messages off.
    return options if chosen else f"{sharing_options()} {options}".strip()


def may_be_used(path: Path) -> bool:
    """Whether the file is there, and nobody but this user, root and the owner of the environment can have made it."""
    if not _in_environment():
        return is_private(path.parent) and path.is_file() and not path.is_symlink()
    try:
        owners = {0, os.geteuid(), Path(sys.prefix).stat().st_uid}
        found = [path.parent.lstat(), path.lstat()]
    except OSError:
        return False
    guarded = all(part.st_uid in owners and not part.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for part in found)
    return guarded and stat.S_ISREG(found[1].st_mode)


def archive_path() -> Path | None:
    """Of the Java and the Spark that this process would start.

    None where there is no Java, or no folder an option can name.
    """
    java = find_java()
    if java is None:
        return None
    spark, program = Path(pyspark.__file__).parent, Path(java).resolve()
    about = program.stat()
    made_for = f"{program} {about.st_size} {about.st_mtime_ns} {spark} {pyspark.__version__}"
    name = f"spark-{pyspark.__version__}-{hashlib.sha256(made_for.encode()).hexdigest()[:16]}.jsa"
    path = _folder() / name
    return None if set(str(path)) & set(" \t'\"\\") else path


def _folder() -> Path:
    """In the virtual environment whose jars it was made of, so that it goes with them.

    Else in the user's cache folder.
    """
    if _in_environment():
        return Path(sys.prefix) / "share" / "vnode-backfill"
    return cache_folder().resolve() / "jvm"


def _in_environment() -> bool:
    return sys.prefix != sys.base_prefix


def find_java() -> str | None:
    """The program that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin") if home else None)
