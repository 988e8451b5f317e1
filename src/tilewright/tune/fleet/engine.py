"""The engine, and who may talk to it: itself on this machine, and whoever has the fleet's keys."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.tune.fleet import keys

LOOPBACK: Final = "127.0.0.1"
PLAIN, ENCRYPTED = "tcp", "tls"


def distributed() -> ModuleType:
    """The engine's package. Raises UnsupportedError where it is not installed."""
    try:
        import distributed
    except ImportError:
        raise UnsupportedError(
            "a fleet needs the package distributed",
            code="TW-EXTRA",
            hint="pip install 'tilewright[fleet]'",
        ) from None
    # What matters of its many lines is an error of ours.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    found: ModuleType = distributed
    return found


def security(folder: Path | None) -> Any:
    """What the engine encrypts by, both sides known to each other; None without keys.

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
    """Whether a host is this machine seen from itself, whatever a name server says of others."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def expect_safe(host: str, folder: Path | None) -> None:
    """Raise InputError for a host beyond this machine without keys.

    Whoever reaches an open port of the engine runs code there.
    """
    if folder is None and not is_loopback(host):
        raise InputError(
            f"{host} is beyond this machine, and there are no keys",
            where="fleet",
            code="TW-FLEET-KEYS",
            hint="make keys by `tilewright fleet keys DIR`, copy them to every machine, and "
            "give --keys DIR everywhere",
        )


def checked(address: str, folder: Path | None) -> str:
    """A scheduler's address, its protocol by whether there are keys.

    Raises InputError for what is not an address, for another protocol, and as `expect_safe`.
    """
    wanted = PLAIN if folder is None else ENCRYPTED
    parts = urlsplit(address if "://" in address else f"{wanted}://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.path not in ("", "/"):
        raise InputError(
            f"{address!r} is not an address of a scheduler",
            where="fleet",
            hint="give one such as tcp://127.0.0.1:8786, as the scheduler prints it",
        )
    expect_safe(host, folder)
    if parts.scheme != wanted:
        keyed = "with" if folder else "without"
        raise InputError(
            f"{address} is not for connections {keyed} keys",
            where="fleet",
            hint=f"{wanted}://{parts.netloc}, or the other way with --keys",
        )
    return f"{wanted}://{parts.netloc}"
