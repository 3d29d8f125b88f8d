# shellcheck shell=bash
# Shared by the pipeline scripts; to be sourced. Works in the caller's folder, with the project's .venv if there is one.

_here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=python3
if [ -x "$_here/.venv/bin/python" ]; then
    python=$_here/.venv/bin/python
fi

# A locale that knows all characters, for Java and Python alike, whatever the caller's environment lacks.
if [ -z "${LC_ALL:-}${LC_CTYPE:-}${LANG:-}" ]; then
    export LC_ALL=C.UTF-8
fi

step() { printf '== %s\n' "$*" >&2; }

# Prints the comment that the calling script begins with, and exits: with 0 if it was asked for, else with 2.
usage() {
    local text
    text=$(sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//p;}' "$0")
    if [ "$1" -ne 0 ]; then
        printf '%s\n' "$text" >&2
        exit "$1"
    fi
    printf '%s\n' "$text"
    exit 0
}

# Whether the flag that comes first has a value behind it.
require_value() {
    if [ $# -lt 2 ] || [ -z "$2" ]; then
        printf 'error: %s needs a value\n' "$1" >&2
        exit 2
    fi
}

backfill() { "$python" -m vnode_backfill "$@"; }

# Runs a command and passes a stop of this script on to it. Its exit code is ours. A second stop waits as well.
forward() {
    local child code stopped=yes
    "$@" &
    child=$!
    trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
    # `wait` also returns when a signal arrives; the command then still runs.
    while [ -n "$stopped" ]; do
        stopped='' code=0
        wait "$child" || code=$?
    done
    trap - TERM INT
    return "$code"
}
