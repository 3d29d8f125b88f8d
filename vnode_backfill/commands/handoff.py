"""Prints where a job that only copies has ended, or checks that two configurations are the halves of one handoff."""

from __future__ import annotations

from pathlib import Path

from vnode_backfill.config.job import Config, load_config
from vnode_backfill.words.errors import ConfigError, StateError


def handoff(config: Config, *, follow: Path | None) -> int:
    """Print where a job that copies has ended, as JSON; exit code 1 if it has not.

    Or check that two files belong together.
    """
    from vnode_backfill.job.open.handoff import check_copies, check_pair, read_handoff

    if config.many:
        raise ConfigError(
            f"job {config.job} copies many tables: it has no handoff",
            hint="Run it with `startup_mode: initial`: it copies and follows. A job of one table can be handed over.",
        )
    if follow is not None:
        check_pair(config, load_config(follow, {}))
        return 0
    check_copies(config)
    ended = read_handoff(config, config.job)
    if ended is None:
        raise StateError(
            f"job {config.job} has stored no handoff", hint="Run it with startup_mode snapshot until it ends by itself."
        )
    print(ended.to_json(), end="")
    return 0
