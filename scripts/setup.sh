# shellcheck shell=bash
# Sets up what every script needs first; to be sourced. Defines:
#   prepare_python    a virtual environment in .venv with the project and its test tools
#   prepare_java      Java 17 or newer and Maven
#   prepare_servers   jars and servers in the user's cache folder
#   prepare_jvm       the classes of Spark's JVM in .venv, for jobs that start sooner
# Each does nothing when its work is done already. What cannot be installed here is named with the command that does it.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository" || exit

# A locale that knows all characters, for Java and Python alike, whatever the caller's environment lacks.
if [ -z "${LC_ALL:-}${LC_CTYPE:-}${LANG:-}" ]; then
    export LC_ALL=C.UTF-8
fi

# Every process that starts would compile the whole product again.
unset PYTHONDONTWRITEBYTECODE

say() { printf '\n== %s\n' "$*" >&2; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Installs Debian packages as root; says what to run otherwise.
install_packages() {
    if ! command -v apt-get >/dev/null; then
        fail "$1 is missing: please install it with your system's package manager"
    fi
    local what=$1
    shift
    if [ "$(id -u)" -ne 0 ]; then
        fail "$what is missing; run: sudo apt-get update && sudo apt-get install -y $*"
    fi
    say "installing $what"
    apt-get -q update
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
}

# Prints the first Python from 3.11 on that can make virtual environments.
find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3 \
        "$HOME"/.pyenv/versions/3.11*/bin/python3 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

prepare_python() {
    local python stamp
    if [ ! -x .venv/bin/python ]; then
        if ! python=$(find_python); then
            install_packages "Python 3.11 or newer" python3 python3-venv
            python=$(find_python) || fail "Python 3.11 or newer is missing, and this system's packages are older"
        fi
        say "making .venv with $("$python" --version)"
        "$python" -m venv .venv
    fi
    # One checksum decides whether the dependencies may have changed since the last installation.
    stamp=$(cat pyproject.toml constraints.txt | sha256sum)
    if [ "$(cat .venv/installed 2>/dev/null)" != "$stamp" ]; then
        say "installing the project into .venv"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
        printf '%s\n' "$stamp" >.venv/installed
    fi
}

java_version() {
    local java=java
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
    fi
    "$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

prepare_java() {
    local version
    version=$(java_version || true)
    if [ "${version:-0}" -lt 17 ]; then
        install_packages "Java 17" openjdk-17-jre-headless
    fi
    if ! command -v mvn >/dev/null; then
        install_packages "Maven" maven
    fi
}

prepare_jvm() {
    say "classes of Spark's JVM"
    .venv/bin/python -m vnode_backfill.spark.make_class_archive
}

prepare_servers() {
    say "jars and servers"
    .venv/bin/python -m devkit.fetch
}
