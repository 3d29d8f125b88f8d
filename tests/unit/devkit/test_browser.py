"""Chromium is installed by one at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devkit import browser


def test_two_that_need_the_browser_install_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a new machine two tests ask at the same time. Both have seen that it is missing before either installs it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program, both_looked, looks, installs = tmp_path / "chromium", threading.Barrier(2), threading.local(), []

    def look() -> Path | None:
        found = program if program.exists() else None
        if not getattr(looks, "done", False):
            looks.done = True
            both_looked.wait(timeout=10)
        return found

    def install() -> None:
        installs.append(threading.get_ident())
        program.touch()

    monkeypatch.setattr(browser, "_installed", look)
    monkeypatch.setattr(browser, "_install", install)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: browser.find_chromium(), range(2))) == [program, program]
    assert len(installs) == 1
