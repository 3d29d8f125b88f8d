"""Where this user's processes may keep what they would only have to make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/vnode-backfill`, else `~/.cache/vnode-backfill`; it need not exist, and a container's user may have no home."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - raises without a home
    return Path(home) / "vnode-backfill"
