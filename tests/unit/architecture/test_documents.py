"""README, changelog and everything in `docs/` can be read in 120 columns, and their links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.spark import REPOSITORY

DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
COLUMNS = 120
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_SKIPPED_IN_ANCHOR = re.compile(r"[^\w\- ]")


def prose_of(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines outside blocks of code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def anchors_of(document: Path) -> set[str]:
    """The names that GitHub gives to the headings of a document."""
    titles = (line.lstrip("#").strip().lower() for _, line in prose_of(document.read_text()) if line.startswith("#"))
    return {_SKIPPED_IN_ANCHOR.sub("", title).replace(" ", "-") for title in titles}


def is_broken(link: str, document: Path) -> bool:
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    return not target.exists() or bool(anchor and anchor not in anchors_of(target))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    links = _LINK.findall("\n".join(line for _, line in prose_of(document.read_text())))
    assert [link for link in links if "://" not in link and is_broken(link, document)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_prose_ends_at_120_columns(document: Path) -> None:
    assert [number for number, line in prose_of(document.read_text()) if len(line) > COLUMNS] == []


def test_every_document_is_reached_from_the_readme() -> None:
    linked = set(_LINK.findall((REPOSITORY / "README.md").read_text()))
    assert {f"docs/{path.name}" for path in DOCUMENTS if path.parent.name == "docs"} <= linked


def test_a_link_is_broken_without_its_file_or_its_heading(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Two Words: here\n")
    assert not is_broken("#two-words-here", page)
    assert not is_broken("page.md#two-words-here", page)
    assert is_broken("page.md#three-words", page)
    assert is_broken("other.md", page)
