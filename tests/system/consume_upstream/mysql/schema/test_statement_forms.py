"""Statements in every form that a client can send mean what the server did, or are known not to be understood.

The statements come from the grammar of the statement fuzzer: comments, character sets, `sql_mode`, prepared, in
procedures. Whatever is carried out or passed over must leave what the server shows.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from consume_upstream.mysql.binlog.events import EventKind
from devkit.mysql import SqlServer
from tests.system.consume_upstream.mysql.schema.followed_table import Followed
from tests.system.consume_upstream.mysql.statements.statement_grammar import Case, Grammar
from tests.system.consume_upstream.mysql.statements.test_fuzzer import TABLES, World
from vnode_backfill.words.schema_change import Carried, Emptied, NoEffect

SEED = 20261117


def judge(world: World, case: Case, counts: Counter[str]) -> list[str]:
    """What is wrong with the derived effects of one statement."""
    followed = Followed(world.server, world.names.database, world.names.table)
    followed.begin()
    start = followed.position()
    world.try_case(case)
    world.end()
    rows_logged = any(event[4] == EventKind.TABLE_MAP for event in followed.events(start))
    effects = followed.follow_log(start)
    followed.connection.close()
    counts.update(type(effect).__name__ for effect in effects)
    if rows_logged or not all(isinstance(effect, Carried | Emptied | NoEffect) for effect in effects):
        return []
    if world.state() is None:
        return [f"{case} took the table away, and its effects are {effects}"]
    after = Followed(world.server, world.names.database, world.names.table)
    after.definition, after.rows = followed.definition, followed.rows
    return [f"{case}: {difference}" for difference in after.differences()]


def check(server: SqlServer, seed: int, statements: int) -> Counter[str]:
    drawn, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    for names in TABLES:
        world = World(server, names)
        grammar, clean = Grammar(server.flavour, names, drawn), world.state()
        for number in range(1, statements // len(TABLES) + 1):
            wrong += judge(world, grammar.case(), counts)
            world.restore(clean, all_of_it=number % 20 == 0)
        world.end()
        with world.control.cursor() as cursor:
            for database in (names.database, names.other):
                cursor.execute(f"DROP DATABASE `{database}`")
        world.control.close()
    print(f"seed {seed}: {dict(counts)}")
    assert wrong == [], f"seed {seed}: {len(wrong)} wrong:\n" + "\n".join(wrong[:20])
    return counts


def test_every_form_means_what_the_server_did(source_server: SqlServer) -> None:
    counts = check(source_server, SEED, 30)
    assert counts["Carried"] + counts["Emptied"] + counts["Ended"] > 3, counts


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_forms(source_server: SqlServer) -> None:
    seed = int(os.environ.get("STATEMENT_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}")
    check(source_server, seed, int(os.environ.get("STATEMENTS", "1000")))
