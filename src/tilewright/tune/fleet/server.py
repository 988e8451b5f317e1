"""A scheduler and a worker of a fleet; each runs until its process is stopped."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError, InputError
from tilewright.base.text import reason
from tilewright.tune.fleet import engine
from tilewright.tune.fleet.bench import LocalPlaces, set_up
from tilewright.tune.fleet.device import FleetDevice

Ready = Callable[[str], object]  # called with the address
PORT: Final = 8786  # Dask's default port for schedulers
# A job that kills this many workers is lost.
_LIVES: Final = 3
_CONNECT: Final = 30  # seconds that a worker tries to reach its scheduler


@dataclass(frozen=True, slots=True)
class Places:
    """A worker's offer: `count` programs at a time on its device, of `threads` threads each."""

    name: str
    count: int = 1
    threads: int = 1


def run_scheduler(
    ready: Ready,
    host: str = engine.LOOPBACK,
    port: int = PORT,
    keys: Path | None = None,
    dashboard: int | None = None,
    tied: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM.

    host, port: to listen on; port 0: a free one. dashboard: the port of Dask's web page, on this
    machine only. tied: also stop at the end of standard input. Raises InputError for a host beyond
    this machine without keys, for a port that is in use, and for a dashboard without its package.
    """
    engine.expect_safe(host, keys)
    if dashboard is not None:
        _expect_dashboard()
    with _configured():
        made = _scheduler(host, port, keys, dashboard)
        asyncio.run(_served(made, ready, tied))


def run_worker(
    ready: Ready,
    address: str,
    places: Places,
    keys: Path | None = None,
    tied: bool = False,
) -> None:
    """Measure for a scheduler until SIGINT or SIGTERM, or until the scheduler is gone.

    tied: also stop at the end of standard input. Raises InputError for a bad address, for a host
    beyond this machine without keys, for an invalid device name, and for more cores than there are;
    ExecutionError if no scheduler answers at the address.
    """
    address = engine.checked(address, keys)
    device = FleetDevice.here(places.name, places.threads)
    with _configured():
        bench = LocalPlaces(places.count, places.threads)
        with set_up(bench):
            made = _worker(address, {device.resource: places.count}, keys)
            asyncio.run(_served(made, ready, tied))


def _configured() -> Any:
    engine.distributed()  # reports a missing package
    import dask

    return dask.config.set(
        {
            "distributed.scheduler.allowed-failures": _LIVES,
            # A long call into C must not count as a hanging worker.
            "distributed.admin.tick.limit": "1h",
        }
    )


async def _scheduler(
    host: str, port: int, keys: Path | None, dashboard: int | None
) -> Any:
    shown = f"{engine.LOOPBACK}:{dashboard}"
    made = engine.distributed().Scheduler(
        host=host,
        port=port,
        protocol=engine.PLAIN if keys is None else engine.ENCRYPTED,
        security=engine.security(keys),
        dashboard=dashboard is not None,
        dashboard_address=shown if dashboard is not None else None,
    )
    try:
        await made
    except OSError as error:
        raise InputError(
            f"the scheduler cannot listen on {host}:{port}: {reason(error)}",
            where="fleet",
            hint="use another --port, or 0 for a free one",
        ) from None
    return made


async def _worker(address: str, resources: Mapping[str, int], keys: Path | None) -> Any:
    made = engine.distributed().Worker(
        address,
        nthreads=sum(resources.values()),
        resources=resources,
        security=engine.security(keys),
        host=engine.LOOPBACK if keys is None else None,
        memory_limit=0,
        dashboard=False,
        death_timeout=_CONNECT,
    )
    try:
        await made
    except (OSError, TimeoutError, RuntimeError) as error:
        raise ExecutionError(
            f"no scheduler answers at {address}: {_first_line(error)}",
            where="fleet",
            hint="start it with `tilewright fleet scheduler`; all need the same keys",
        ) from None
    return made


async def _served(made: Awaitable[Any], ready: Ready, tied: bool) -> None:
    """Start a node, report that it is ready, and wait until it or the process is to stop."""
    node = await made
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    if tied:
        loop.add_reader(sys.stdin.fileno(), told.set)
    ready(node.address)
    ended = [asyncio.ensure_future(f) for f in (node.finished(), told.wait())]
    await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    for waiting in ended:
        waiting.cancel()
    await node.close()


def _expect_dashboard() -> None:
    from importlib.util import find_spec

    if find_spec("bokeh") is None:
        raise InputError(
            "the dashboard needs the package bokeh",
            where="--dashboard",
            hint="pip install bokeh",
        )


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
