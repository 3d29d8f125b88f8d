"""Where the classes of Spark's JVM lie that were loaded once before, so that a job's JVM maps them in place of loading them again.

Loading and checking some twelve thousand classes is most of what a JVM does before its first task: 8.7 CPU-seconds until then became 5.3.
What must be true: no job depends on it. The JVM itself compares such a file with its own build and with every jar, and goes on without it
where they differ; a file is whole from the moment it has its name, which tells the JVM and the Spark it was made for.
`python -m vnode_backfill.archive_classes` makes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pyspark

from vnode_backfill.cache_folder import cache_folder

QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""What a JVM has to say about such a file it says on its standard output otherwise."""


def sharing_options() -> str:
    """The JVM's options for using the file, if there is one."""
    path = archive_path()
    return f"-XX:SharedArchiveFile={path} {QUIET}" if path is not None and path.is_file() else ""


def archive_path() -> Path | None:
    """Of the Java and the Spark that this process would start; None where there is no Java, or no folder an option can name."""
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
    """In the virtual environment whose jars it was made of, so that it goes with them; else in the user's cache folder."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "share" / "vnode-backfill"
    return cache_folder() / "jvm"


def find_java() -> str | None:
    """The program that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin") if home else None)
