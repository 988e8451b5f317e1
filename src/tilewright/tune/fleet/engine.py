"""Dask, and access to it: unrestricted on this machine, otherwise only with the fleet's keys."""

from __future__ import annotations

import ipaddress
import logging
import socket
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from tilewright.base.errors import ArgumentError, InputError, UnsupportedError
from tilewright.tune.fleet import keys

LOOPBACK: Final = "127.0.0.1"
PLAIN, ENCRYPTED = "tcp", "tls"


def distributed() -> ModuleType:
    """The `distributed` package. Raises UnsupportedError if it is not installed."""
    try:
        import distributed
    except ImportError:
        raise UnsupportedError(
            "a fleet needs the package distributed",
            code="TW-EXTRA",
            hint="pip install 'tilewright[fleet]'",
        ) from None
    # Errors that matter are raised as ours; silence the rest of its log.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    found: ModuleType = distributed
    return found


def security(folder: Path | None) -> Any:
    """Dask's encryption settings, with mutual authentication; None without keys.

    Raises InputError for keys that are missing or not private.
    """
    if folder is None:
        return None
    files = keys.found(folder)
    sides = ("client", "worker", "scheduler")
    own = {f"tls_{side}_cert": files[keys.CERTIFICATE] for side in sides}
    own |= {f"tls_{side}_key": files[keys.KEY] for side in sides}
    return distributed().Security(
        tls_ca_file=files[keys.AUTHORITY], require_encryption=True, **own
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's loopback address; no name lookup is made."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def expect_safe(host: str, folder: Path | None) -> None:
    """Raise InputError for a host beyond this machine without keys.

    Anyone who reaches an open Dask port can run code there.
    """
    if folder is None and not is_loopback(host):
        raise InputError(
            f"{host} is beyond this machine, and there are no keys",
            where="fleet",
            code="TW-FLEET-KEYS",
            hint="create keys with `tilewright fleet keys DIR`, copy them to every machine, and "
            "give --keys DIR everywhere",
        )


def checked(address: str, folder: Path | None) -> str:
    """Normalize a scheduler's address; its protocol depends on whether there are keys.

    Raises InputError for an invalid address, for another protocol, and as `expect_safe`.
    """
    wanted = PLAIN if folder is None else ENCRYPTED
    parts = urlsplit(address if "://" in address else f"{wanted}://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.path not in ("", "/"):
        raise ArgumentError(
            f"{address!r} is not a scheduler address",
            where="fleet",
            hint="give one like tcp://127.0.0.1:8786, as printed by the scheduler",
        )
    expect_safe(host, folder)
    if parts.scheme != wanted:
        keyed = "with" if folder else "without"
        raise InputError(
            f"{address} does not fit connections {keyed} keys",
            where="fleet",
            hint=f"use {wanted}://{parts.netloc}, or change --keys",
        )
    return f"{wanted}://{parts.netloc}"


def expect_open(address: str, seconds: float) -> None:
    """Raise OSError if nothing listens at an address that `checked` has returned.

    Dask would try a closed port again until its time is over. seconds: to wait for an answer.
    """
    parts = urlsplit(address)
    socket.create_connection((parts.hostname, parts.port), seconds).close()
