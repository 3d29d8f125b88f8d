"""Gets files out of Maven repositories and Debian packages, without root.

Maven is asked through a small pom and its dependency plugin, so that the mirrors and proxies of the user's
`settings.xml` count. It keeps its own repository inside the cache folder: what is needed once is deleted from there.
Debian packages are downloaded and unpacked into a folder; nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from devkit.commands import find_program, require_program, run_command
from devkit.errors import DevkitError
from vnode_backfill.config.cache_folder import cache_folder

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a Maven repository."""

    group: str
    name: str
    version: str
    type: str = "jar"
    classifier: str = ""
    exclusions: tuple[str, ...] = ()
    """`group:name` of dependencies that are left out; only for `copy_with_dependencies`."""

    @property
    def file_name(self) -> str:
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classifier}.{self.type}"


def copy_artifacts(artifacts: tuple[Artifact, ...], folder: Path) -> None:
    """Copy exactly these files into the folder, none of their dependencies."""
    items = "".join(f"<artifactItem>{_coordinates(artifact)}</artifactItem>" for artifact in artifacts)
    group, name, version = DEPENDENCY_PLUGIN.split(":")
    plugin = f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
    configuration = f"<artifactItems>{items}</artifactItems><outputDirectory>{escape(str(folder))}</outputDirectory>"
    plugins = f"<plugin>{plugin}<configuration>{configuration}</configuration></plugin>"
    _run_maven(f"<build><plugins>{plugins}</plugins></build>", f"{DEPENDENCY_PLUGIN}:copy")


def copy_with_dependencies(artifacts: tuple[Artifact, ...], folder: Path) -> None:
    """Copy these files and all they need at run time into the folder."""
    items = "".join(f"<dependency>{_coordinates(artifact)}</dependency>" for artifact in artifacts)
    _run_maven(
        f"<dependencies>{items}</dependencies>",
        f"{DEPENDENCY_PLUGIN}:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={folder}",
    )


def forget_artifact(artifact: Artifact) -> None:
    """Delete a large file from Maven's repository once it is unpacked."""
    shutil.rmtree(_maven_repository() / artifact.group.replace(".", "/") / artifact.name, ignore_errors=True)


def unpack_debian_packages(names: tuple[str, ...], folder: Path) -> None:
    """Download these packages and unpack them below `folder`, as any user."""
    require_program("dpkg", hint="this way needs Debian or Ubuntu")
    apt = require_program("apt-get", hint="this way needs Debian or Ubuntu")
    with tempfile.TemporaryDirectory() as downloads:
        # apt drops root while downloading and must be able to write there.
        Path(downloads).chmod(0o777)
        try:
            run_command([apt, "-q", "download", *names], folder=Path(downloads))
        except DevkitError:
            if os.geteuid() != 0:
                raise
            # A fresh container has no package lists.
            run_command([apt, "-q", "update"])
            run_command([apt, "-q", "download", *names], folder=Path(downloads))
        for package in sorted(Path(downloads).glob("*.deb")):
            run_command(["dpkg", "-x", package, folder])


def _coordinates(artifact: Artifact) -> str:
    fields = {
        "groupId": artifact.group,
        "artifactId": artifact.name,
        "version": artifact.version,
        "type": artifact.type,
        "classifier": artifact.classifier,
    }
    text = "".join(f"<{field}>{escape(value)}</{field}>" for field, value in fields.items() if value)
    return text + _exclusions(artifact)


def _exclusions(artifact: Artifact) -> str:
    pairs = [pair.split(":") for pair in artifact.exclusions]
    items = [
        f"<exclusion><groupId>{group}</groupId><artifactId>{name}</artifactId></exclusion>" for group, name in pairs
    ]
    return f"<exclusions>{''.join(items)}</exclusions>" if items else ""


def _run_maven(content: str, goal: str, *properties: str) -> None:
    maven = require_program("mvn", hint="install it, for example with `apt-get install maven openjdk-17-jdk-headless`")
    with tempfile.TemporaryDirectory() as folder:
        pom = Path(folder) / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>local</groupId><artifactId>fetch</artifactId><version>1</version><packaging>pom</packaging>"
            f"{content}</project>"
        )
        repository = f"-Dmaven.repo.local={_maven_repository()}"
        run_command([maven, "-q", "-B", repository, "-f", pom, goal, *properties], environment=_java_home())


def _java_home() -> dict[str, str]:
    if os.environ.get("JAVA_HOME") or find_program("java"):
        return {}
    raise DevkitError(
        "Java is not installed", hint="install it, for example with `apt-get install openjdk-17-jdk-headless`"
    )


def _maven_repository() -> Path:
    return cache_folder() / "maven"
