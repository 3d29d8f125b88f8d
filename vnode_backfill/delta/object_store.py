"""Opens the store behind a folder, local or remote, with the options that also open it for `deltalake`.

What must be true: whoever may read a table's files may read and write its log, with the same options and no others. So
the names are those of `deltalake`, in upper or lower case. A name that the store does not know is left out, as
`deltalake` leaves it out. Options of the HTTP client (`allow_http`, `timeout`, …) are handed over apart from those of
the store, because the store's builder ends the process's thread over them.

Commits rely on "write this file only if there is none". A table whose writers agree by a lock of their own must not be
written past that lock, so such options are refused.

What the store says becomes an `OSError` of the fitting kind. Its text never holds the value of an option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import LocalStore, from_url

from vnode_backfill.words.errors import SinkError

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, ObjectStore, S3Config

Options = tuple[tuple[str, str], ...]

_CLIENT = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
        "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only",
        "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
        "root_certificate", "randomize_addresses", "read_timeout", "timeout", "user_agent",
    }
)  # fmt: skip
_OF_A_PROVIDER = ("aws_", "azure_", "google_")
_LOCK = "AWS_S3_LOCKING_PROVIDER"
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def open_local(folder: Path) -> ObjectStore:
    """The folder, which must be there."""
    return LocalStore(prefix=str(folder))


@lru_cache(maxsize=64)
def open_remote(url: str, options: Options) -> ObjectStore:
    """The folder at `url`; the same store for the same options."""
    _refuse_lock(dict(options))
    client, others = split_options(dict(options))
    with told_as_system_errors(options):
        known = {name: value for name, value in others.items() if _knows(url, name, value)}
        try:
            return from_url(url, config=cast("S3Config", known), client_options=cast("ClientConfig", client))
        except ValueError as error:
            raise SinkError(
                f"the options of {url} cannot be used",
                detail=_without_values(str(error), options),
                hint="Check `storage.options`.",
            ) from None


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of the HTTP client, by their plain names, and all others."""
    client: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, value in options.items():
        plain = name.lower()
        for provider in _OF_A_PROVIDER:
            plain = plain.removeprefix(provider)
        if plain in _CLIENT:
            client[plain] = value
        else:
            others[name] = value
    return client, others


@contextmanager
def told_as_system_errors(options: Options) -> Iterator[None]:
    """Turn what a store says into an `OSError`, without the values of `options`."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(_said(error, options)) from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(_said(error, options)) from None
    except NotSupportedError as error:
        raise SinkError(
            "the object store cannot write a file on condition that there is none",
            detail=_said(error, options),
            hint="Use a store that supports conditional writes, and leave `aws_conditional_put` at its default.",
        ) from None
    except BaseError as error:
        text = _said(error, options)
        number = _SYSTEM_ERROR.search(text)
        raise (OSError(text) if number is None else OSError(int(number[1]), text)) from None


def _said(error: BaseError, options: Options) -> str:
    return _without_values(str(error).partition("\n\nDebug source")[0], options)


def _without_values(text: str, options: Options) -> str:
    for _, value in options:
        if len(value) > 3:
            text = text.replace(value, "…")
    return text


def _knows(url: str, name: str, value: str) -> bool:
    config: Mapping[str, str] = {name: value}
    try:
        from_url(url, config=cast("S3Config | GCSConfig | AzureConfig", config))
    except UnknownConfigurationKeyError:
        return False
    except BaseError:
        return True
    return True


def _refuse_lock(options: Mapping[str, str]) -> None:
    given = {name.upper(): value for name, value in options.items()}
    provider = given.get(_LOCK, os.environ.get(_LOCK, ""))
    if provider and provider.lower() != "none":
        raise SinkError(
            f"{_LOCK} is set, and commits here do not take that lock",
            detail="Other writers would wait for a lock that this job goes past. One of the commits could be lost.",
            hint="Take the option away for every writer: the store itself lets only one of two commits pass.",
        )
