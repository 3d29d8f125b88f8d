"""Runs the command line with a bomb in it: kills the process with -9 before or after a given order or step.

`python -m devkit.crash --kill after:MergeEpoch:3 -- run --config job.yaml` runs as `vnode-backfill run …` and dies at
once when the third `MergeEpoch` has been carried out, before its report is acted on. `after:MergeEpoch:3@live` counts
only orders of epochs in which the whole job is live; the phases are `snapshot`, `catch-up` and `live`. Steps are those
in which the target changes on disk (`vnode_backfill.delta.steps`): `before:CommitFold -- compact --config job.yaml`.
`before:CreateJob` dies when everything of a new job has been written except the state that makes it exist.
`before:RenewJob` dies when a new copy of the table could begin and the job's state does not say so yet.
`before:WriteHandoff` dies when a copy has ended and its file does not say so yet.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

from progress.state.backfill_state import BackfillState
from progress.state.make_report import phase_of
from progress.state.report import JobPhase
from progress.store.store import StateStore
from vnode_backfill.commands.cli import main as run_command
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.config.targets import templates_of
from vnode_backfill.decide.protocol import Action, CommitEpoch
from vnode_backfill.delta import steps
from vnode_backfill.delta.steps import Step
from vnode_backfill.job.open import handoff
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.order_threads import Moment

_PLACEHOLDER = re.compile(r"\{(?:database|table)\}")


@dataclass
class Bomb:
    """Counts the orders or steps of one kind, in one phase if one is given, and kills the process at the given one.

    An order belongs to the phase of the commit that its epoch began with. So `CommitEpoch` belongs to the epoch that it
    ends. Steps count in folders that match `target` only, not in those of the buffer.
    """

    moment: str
    order: str
    count: int
    phase: JobPhase | None = None
    target: re.Pattern[str] | None = None
    _now: JobPhase = JobPhase.SNAPSHOT
    _ending: JobPhase = JobPhase.SNAPSHOT
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> Self:
        seam, _, phase = text.partition("@")
        moment, order, *rest = seam.split(":")
        return cls(moment, order, int(rest[0]) if rest else 1, JobPhase(phase) if phase else None)

    def begin(self, state: BackfillState) -> None:
        """`state` is what the job is taken up with."""
        self._now = self._ending = phase_of(state, running=True)

    def __call__(self, moment: Moment, action: Action) -> None:
        with self._lock:
            self._follow(moment, action)
            if type(action).__name__ == self.order and self._in_phase(action):
                self._count(moment)

    def at_step(self, moment: Moment, step: Step, path: str) -> None:
        with self._lock:
            if step == self.order and self._in_target(path) and self.phase in (None, self._now):
                self._count(moment)

    def _in_target(self, path: str) -> bool:
        return self.target is not None and self.target.fullmatch(path) is not None

    def _count(self, moment: Moment) -> None:
        if moment == self.moment:
            self.count -= 1
            if self.count == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def _follow(self, moment: Moment, action: Action) -> None:
        # Already at the beginning of a commit: the orders of the next epoch may come before its end is reported here.
        if isinstance(action, CommitEpoch) and moment == "before":
            self._ending, self._now = self._now, phase_of(action.state, running=True)

    def _in_phase(self, action: Action) -> bool:
        return self.phase is None or self.phase == (self._ending if isinstance(action, CommitEpoch) else self._now)


def targets_of(config: Config) -> re.Pattern[str] | None:
    """The folders that the job's tables may have; None if the sink has none. Of many tables, each has its own."""
    if config.sink.delta is None:
        return None
    if not config.many:
        return re.compile(re.escape(config.sink.delta.path.rstrip("/")))
    templates = {each.text for entry in config.mysql.tables for each in templates_of(config.sink, entry)}
    return re.compile("|".join(map(_filled_in_any_way, sorted(templates))))


def _filled_in_any_way(template: str) -> str:
    """A name of a table makes one folder, so no slash is in what replaces it."""
    return "[^/]+".join(map(re.escape, _PLACEHOLDER.split(template.rstrip("/"))))


def plant_outside_the_loop(bomb: Bomb) -> None:
    """Put a bomb where no order of the coordinator is carried out: at the creation of a job, and after its end."""

    def die(*_: object, **__: object) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL cannot be survived")

    if bomb.order == "CreateJob":
        StateStore.prepare_create = _followed_by(StateStore.prepare_create, die)  # type: ignore[method-assign]
    elif bomb.order == "RenewJob":
        StateStore.begin_again = die  # type: ignore[method-assign]
    elif bomb.order == "WriteHandoff":
        handoff.write_handoff = die


def _followed_by(work: Callable[..., None], die: Callable[..., NoReturn]) -> Callable[..., None]:
    def last_work(*values: object, **named: object) -> None:
        work(*values, **named)
        die()

    return last_work


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kill", required=True, type=Bomb.parse, metavar="before|after:Order|Step[:number][@phase]")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    command = [word for word in arguments.command if word != "--"]
    config = load_config(Path(command[command.index("--config") + 1]))
    # The phase of a job of many tables is that of none of them, so its bombs count in any phase.
    loaded = None if config.many else state_store(config).load()
    arguments.kill.target = targets_of(config)
    if loaded is not None:
        arguments.kill.begin(loaded.state)
    order_threads.seam = arguments.kill
    steps.seam = arguments.kill.at_step
    plant_outside_the_loop(arguments.kill)
    run_command(command)


if __name__ == "__main__":
    main(sys.argv[1:])
