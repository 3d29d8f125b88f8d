"""Defines the error of everything that goes wrong while real servers are fetched and started."""

from __future__ import annotations

from vnode_backfill.words.errors import BackfillError


class DevkitError(BackfillError):
    """A tool is missing, a download failed, or a server did not start or answer."""
