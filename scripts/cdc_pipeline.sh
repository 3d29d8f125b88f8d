#!/usr/bin/env bash
# The second half of a handoff, or any job that follows the log: checks where it begins, then runs it.
#
#   scripts/cdc_pipeline.sh --config cdc.yaml [FLAGS OF `vnode-backfill run`]
#
# Runs until it is stopped (`vnode-backfill stop`, SIGTERM, Ctrl-C: everything captured is applied first). With
# `--until live` it ends when the target has caught up. May be killed and run again at any time: it continues from
# its own progress.
#
# Exit codes: 0 done, 1 failed, 2 wrong configuration or refused.
set -euo pipefail
# shellcheck source=scripts/pipeline.sh
source "$(dirname "${BASH_SOURCE[0]}")/pipeline.sh"

config=
flags=()
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage 0 ;;
        --config)
            require_value "$@"
            config=$2
            shift 2
            ;;
        *)
            flags+=("$1")
            shift
            ;;
    esac
done
[ -n "$config" ] || usage 2

step "checking source and beginning ($config)"
backfill plan --config "$config"
step "following the log"
forward "$python" -m vnode_backfill run --config "$config" ${flags[@]+"${flags[@]}"}
