"""Hides pandas from pyarrow, in processes that use none.

pyarrow loads pandas only to ask whether our lists are pandas' own: 0.35 CPU-seconds and 40 MB of each process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType


class _WithoutPandas:
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def hide_pandas() -> None:
    """For the rest of this process. Where pandas is loaded already, it stays."""
    sys.meta_path.insert(0, _WithoutPandas())
