#!/usr/bin/env bash
# The first half of a handoff: copies a table to one consistent offset, then ends and stores the handoff.
#
#   scripts/migration_pipeline.sh --config copy.yaml [FLAGS OF `vnode-backfill run`]
#
# The configuration must have `mysql.cdc.startup_mode: snapshot`. May be stopped or killed and run again at any time: it
# continues where it was, and once the copy is complete it only says so. Prints the handoff as JSON.
#
# Exit codes: 0 the copy is complete, 1 failed or stopped before that, 2 wrong configuration or refused.
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

# 1 is the answer of a job that has not ended yet. Anything else that is not 0 would come from the run too, but later.
code=0
said=$(backfill handoff --config "$config" 2>&1 >/dev/null) || code=$?
if [ "$code" -eq 1 ]; then
    step "checking source and table ($config)"
    backfill plan --config "$config"
    step "copying"
elif [ "$code" -ne 0 ]; then
    printf '%s\n' "$said" >&2
    exit "$code"
fi
forward "$python" -m vnode_backfill run --config "$config" ${flags[@]+"${flags[@]}"}
step "the handoff"
backfill handoff --config "$config"
