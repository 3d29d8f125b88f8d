"""A table has one plain name, which reads back to itself; a pattern means what its stars say, in either case rule."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vnode_backfill.words.table_name import TableName, TablePattern

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
GLOBS = st.text("ab*?", min_size=1, max_size=8)
TEXTS = st.text("ab", max_size=8)


@given(NAMES, NAMES)
def test_a_name_reads_back_to_itself_and_to_nothing_else(database: str, table: str) -> None:
    name = TableName(database, table)
    assert TablePattern.parse(str(name)).exact == name


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_tables_never_have_one_name(a: str, b: str, c: str, d: str) -> None:
    assert (str(TableName(a, b)) == str(TableName(c, d))) == ((a, b) == (c, d))


@pytest.mark.parametrize(
    ("text", "database", "table"),
    [("shop.orders", "shop", "orders"), ("`my.shop`.`a``b`", "my.shop", "a`b"), ("shop.`a*b`", "shop", "a*b")],
)
def test_a_part_in_backticks_is_taken_as_it_is(text: str, database: str, table: str) -> None:
    assert TablePattern.parse(text).exact == TableName(database, table)


@pytest.mark.parametrize("text", ["", "orders", ".", "a.", ".b", "a.b.c", "`a.b", "a.``", "`a`b.c", "a..b"])
def test_a_text_that_names_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be database\.table"):
        TablePattern.parse(text)


@given(GLOBS, TEXTS)
def test_a_pattern_matches_what_its_stars_say(glob: str, name: str) -> None:
    expected = re.fullmatch("".join({"*": ".*", "?": "."}.get(letter, letter) for letter in glob), name)
    found = TablePattern("", "shop", glob).matches(TableName("shop", name), fold_case=False)
    assert found == (expected is not None)


@given(GLOBS, TEXTS)
def test_case_counts_only_where_the_server_says_so(glob: str, name: str) -> None:
    pattern, upper = TablePattern("", "SHOP", glob.upper()), TableName("shop", name)
    assert pattern.matches(upper, fold_case=True) == TablePattern("", "shop", glob).matches(upper, fold_case=False)
    assert not pattern.matches(upper, fold_case=False)


def test_a_pattern_of_many_stars_ends() -> None:
    pattern = TablePattern.parse("shop." + "*a" * 60 + "b")
    assert not pattern.matches(TableName("shop", "a" * 64), fold_case=False)


@pytest.mark.parametrize(
    ("text", "like"),
    [("crm.*", "crm"), ("c*.x", "c%"), ("a_b?.x", r"a\_b_"), ("`50%`.x", r"50\%"), ("`a\\`.x", "a\\\\")],
)
def test_the_server_is_asked_for_databases_that_can_match(text: str, like: str) -> None:
    assert TablePattern.parse(text).like() == like
