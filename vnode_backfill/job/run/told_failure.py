"""Words the failure of a table of many, before anybody stores it or shows it.

The protocol and what it calls know one table only. What they say of it names commands of a job of its own (see
`words.hints`). What was decided passes through here before it is carried out. So the state, and whoever shows it, holds
the hint that is right for the job that the table is in.
"""

from __future__ import annotations

from dataclasses import replace

from progress.state.backfill_state import BackfillState, Failure
from vnode_backfill.decide.coordinator import Decision, Stage
from vnode_backfill.decide.protocol import Action, CommitEpoch, Stop
from vnode_backfill.words.hints import for_table

__all__ = ["told", "told_decision"]


def told_decision(decision: Decision, table: str) -> Decision:
    """The decision with hints for the table of many that `table` names; as it is where that is empty."""
    state, actions = decision
    if not table or not (state.is_failing or state.stage is Stage.STOPPED):
        return decision
    state = replace(state, pending=_stored(state.pending, table), ending=told(state.ending, table))
    return state, tuple(_action(action, table) for action in actions)


def told(failure: Failure | None, table: str) -> Failure | None:
    return None if failure is None else replace(failure, hint=for_table(failure.hint, table))


def _stored(state: BackfillState | None, table: str) -> BackfillState | None:
    return None if state is None else replace(state, failure=told(state.failure, table))


def _action(action: Action, table: str) -> Action:
    match action:
        case CommitEpoch(state=state):
            return replace(action, state=replace(state, failure=told(state.failure, table)))
        case Stop(failure=failure):
            return replace(action, failure=told(failure, table))
        case _:
            return action
