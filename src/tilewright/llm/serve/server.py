"""A process that serves one folder until it is interrupted."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from tilewright.base.errors import ArgumentError, InputError, UnsupportedError
from tilewright.base.text import reason
from tilewright.frontends.hf.encoder import FAMILIES as ENCODERS
from tilewright.frontends.hf.folder import CONFIG, load_json
from tilewright.llm.batch import Batch
from tilewright.llm.encoder import load_embedder
from tilewright.llm.model import CHUNKS, GROUP, load

if TYPE_CHECKING:
    from tilewright.driver.keywords import ServeOptions
    from tilewright.llm.serve.app import Service

LOOPBACK: Final = "127.0.0.1"
WAITING: Final = 32  # requests without a row
CONNECTIONS: Final = 256
GRACE_SECONDS: Final = 5  # for answers that are being given when the server is stopped

Ready = Callable[[str], object]  # is told the address


def serve(
    folder: Path,
    ready: Ready,
    host: str = LOOPBACK,
    port: int = 0,
    *,
    key: str | None = None,
    clients: int = 8,
    tokens: int = 1024,
    preparing: AbstractContextManager[None] | None = None,
    **options: Unpack[ServeOptions],
) -> None:
    """Serve a model until SIGINT or SIGTERM. Everything is compiled first, within `preparing`.

    clients: concurrent answers. tokens: the most tokens of an answer. options: those of `load`.
    Raises InputError for a non-loopback host without a key and for a port in use, UnsupportedError
    if packages are missing, and as `load` and `load_embedder` do.
    """
    expect_safe(host, key)
    _expect_packages()
    with _bound(host, port) as listening:
        with preparing or nullcontext():
            service = make(folder, key, clients, tokens, options)
        if is_loopback(host):
            service.hosts = ["127.0.0.1", "localhost", "[::1]", host]
        running = server_of(service)
        place = listening.getsockname()
        shown = f"[{place[0]}]" if ":" in place[0] else place[0]
        # Clients that connect as soon as the address is known wait for an answer instead of being
        # rejected.
        listening.listen(CONNECTIONS)
        # The signal is sent again when all is ended well.
        with suppress(KeyboardInterrupt):
            ready(f"http://{shown}:{place[1]}")
            running.run(sockets=[listening])


def server_of(service: Service) -> Any:
    """The `uvicorn.Server` of the application."""
    import uvicorn

    from tilewright.llm.serve.app import application

    config = uvicorn.Config(
        application(service),
        log_level="warning",
        access_log=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
    )
    return uvicorn.Server(config)


def make(
    folder: Path,
    key: str | None,
    clients: int,
    tokens: int,
    options: Mapping[str, Any],
) -> Service:
    """The service of a folder, compiled: a decoder's engine, running, or an encoder."""
    from tilewright.llm.serve.app import Service
    from tilewright.llm.serve.engine import Engine

    name = folder.resolve().name
    found = load_json(folder, CONFIG).get("architectures")
    if isinstance(found, list) and ENCODERS.keys() & set(map(str, found)):
        embedder = load_embedder(folder, **_of_encoder(options, folder)).prepare()
        return Service(name, embedder=embedder, tokens=tokens, key=key)
    batch = Batch(load(folder, **options), clients).prepare()
    return Service(name, Engine(batch, WAITING).start(), tokens=tokens, key=key)


def _of_encoder(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The options of an encoder. Raises InputError for options that only decoders have."""
    defaults = {
        "precision": "float32",
        "context": None,
        "chunks": CHUNKS,
        "group": GROUP,
    }
    for name, default in defaults.items():
        value = options.get(name, default)
        if value != default:
            raise InputError(
                f"{name}={value!r} for an encoder",
                where=str(folder),
                hint="remove it: it only applies to models that generate text",
            )
    return {name: v for name, v in options.items() if name not in defaults}


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or `localhost`; other names are not resolved."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def expect_safe(host: str, key: str | None) -> None:
    """Raise InputError for a non-loopback host without a key, and for an invalid key."""
    if key is not None and (not key.isascii() or len(key) < 8 or not key.isprintable()):
        raise ArgumentError(
            "the key is shorter than 8 characters, or not plain ASCII",
            where="--api-key",
            hint="python -c 'import secrets; print(secrets.token_urlsafe())' makes one",
        )
    if key is None and not is_loopback(host):
        raise InputError(
            f"{host} is not a loopback address, and no key is set",
            where="serve",
            hint="set --api-key, which clients must then send; traffic is not "
            "encrypted: put a TLS proxy in front if others could listen",
        )


def _expect_packages() -> None:
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"a server needs the packages {' and '.join(missing)}",
            where="serve",
            hint="pip install 'tilewright[serve]'",
        )


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises InputError if binding fails."""
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(kind[0], kind[1])
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(kind[4])
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise InputError(
            f"cannot listen at {host}:{port}: {reason(error)}",
            where="serve",
            hint="choose another --host or --port; port 0 picks a free one",
        ) from None
    return made
