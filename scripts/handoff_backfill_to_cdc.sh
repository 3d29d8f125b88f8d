#!/usr/bin/env bash
# A whole handoff: copies a table, then follows its log into the same target, without a gap and without a row twice.
#
#   scripts/handoff_backfill_to_cdc.sh --backfill copy.yaml --cdc cdc.yaml [FLAGS OF `vnode-backfill run`]
#
# copy.yaml has `mysql.cdc.startup_mode: snapshot`. cdc.yaml is the same with its own `job`, `startup_mode: specific`
# and `specific: {from_job: NAME}` with the copying job's name. The flags are given to the job that follows.
# `--until live` ends when the target has caught up; otherwise it runs until stopped. The source may be written to all
# the time. May be stopped or killed and run again at any time: what is done is not done again.
#
# Exit codes: 0 done, 1 failed or stopped before the copy was complete, 2 wrong configuration or refused.
set -euo pipefail
folder=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=scripts/pipeline.sh
source "$folder/pipeline.sh"

copy=
follow=
flags=()
while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage 0 ;;
        --backfill)
            require_value "$@"
            copy=$2
            shift 2
            ;;
        --cdc)
            require_value "$@"
            follow=$2
            shift 2
            ;;
        *)
            flags+=("$1")
            shift
            ;;
    esac
done
{ [ -n "$copy" ] && [ -n "$follow" ]; } || usage 2

step "checking that the two configurations belong together"
backfill handoff --config "$copy" --follow "$follow"
forward "$folder/migration_pipeline.sh" --config "$copy"
forward "$folder/cdc_pipeline.sh" --config "$follow" ${flags[@]+"${flags[@]}"}
