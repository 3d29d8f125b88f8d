"""Checks that a job can write where its configuration says, before it writes anything and without leaving a trace.

What must be true: a folder that cannot be made or written is refused like a wrong configuration (exit code 2), not
found halfway through creating the job. Only folders of this machine are looked at: the first part of the path that
exists must be a folder in which this account may make others. An object store shows what it allows only when it is
written to.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vnode_backfill.config.job import Config
from vnode_backfill.delta.storage import local_path
from vnode_backfill.job.open.locations import state_folder
from vnode_backfill.words.errors import ConfigError

_ROOM_FOR_FILES = 256
"""Bytes of a path that the job's own folders and files below it need."""

_ANOTHER_ACCOUNT = "Ask with the account that runs the job."


def check_writable(config: Config) -> None:
    """Raise ConfigError with the YAML path of the first folder that this process cannot write to."""
    from vnode_backfill.job.sink.configured import configured_sink

    for key, place in {"state.path": state_folder(config), **configured_sink(config).folders}.items():
        _check_writable(key, place, f"Give {key} a folder that this account may write to, or that it may make.")


def check_state_writable(config: Config) -> None:
    """Raise ConfigError if this process cannot write down a request, or remove the job."""
    _check_writable("state.path", state_folder(config), _ANOTHER_ACCOUNT)


def check_state_readable(config: Config) -> None:
    """Raise ConfigError if this process may not look whether there is a job; a folder that does not exist is fine."""
    place = state_folder(config)
    folder = local_path(place)
    if folder is None:
        return
    try:
        folder.stat()
        reason = "" if os.access(folder, os.R_OK | os.X_OK) else "it may not be read by this account"
    except PermissionError as error:
        reason = error.strerror or str(error)
    except OSError:
        return
    if reason:
        raise ConfigError(f"state.path is {place}; it cannot be read", detail=reason, hint=_ANOTHER_ACCOUNT)


def _check_writable(key: str, place: str, hint: str) -> None:
    folder = local_path(place)
    if folder is not None and (fault := _fault(folder.absolute())):
        raise ConfigError(f"{key} is {place}; it cannot be written", detail=fault, hint=hint)


def _fault(folder: Path) -> str:
    """Why the folder cannot be written or made; empty if it can."""
    # From the root down: the first part that does not exist is where folders would be made.
    last = Path(folder.anchor)
    for part in (*reversed(folder.parents), folder):
        try:
            found = part.stat()
        except FileNotFoundError:
            if part.is_symlink():
                return f"{_shown(part)} is a link to what does not exist"
            break
        except OSError as error:
            return f"{_shown(part)}: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode):
            return f"{_shown(part)} is not a folder"
        last = part
    if not os.access(last, os.R_OK | os.W_OK | os.X_OK):
        return f"{_shown(last)} may not be written by this account"
    return _too_long(folder, last)


def _too_long(folder: Path, last: Path) -> str:
    """Names below a folder that does not exist are not looked at by the system until they are made."""
    if any(len(os.fsencode(name)) > os.pathconf(last, "PC_NAME_MAX") for name in folder.parts):
        return "a name in it is longer than the file system allows"
    longest = os.pathconf(last, "PC_PATH_MAX") - _ROOM_FOR_FILES
    return "it is longer than the system allows" if len(os.fsencode(folder)) > longest else ""


def _shown(folder: Path) -> str:
    text = str(folder)
    return text if len(text) <= 200 else f"{text[:197]}..."
