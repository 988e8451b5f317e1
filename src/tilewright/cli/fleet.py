"""`tilewright fleet`: machines that measure for a tuning run."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from tilewright.cli.groups import CommandGroup
from tilewright.cli.options import json_option
from tilewright.cli.output import dump, note, say, table

_KEYS = click.option(
    "--keys",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the fleet's keys; needed beyond this machine.",
)
_TIED = click.option("--until-input-ends", "tied", is_flag=True, hidden=True)


@click.group(cls=CommandGroup)
def command() -> None:
    """Measure tuning trials on other machines.

    \b
    Example, on this machine alone:
      tilewright fleet scheduler
      tilewright fleet worker 127.0.0.1:8786 --device cpu=1
      tilewright fleet status 127.0.0.1:8786
    """


@command.command()
@click.argument("folder", type=click.Path(path_type=Path))
def keys(folder: Path) -> None:
    """Create keys in FOLDER; every machine with a copy can join the fleet.

    \b
    Example:
      tilewright fleet keys my-fleet
    """
    from tilewright.tune.fleet import keys as made

    made.make(folder)
    say(f"{folder}: copy it to every machine of the fleet, and keep it secret")
    note(f"the keys expire in {made.YEARS} years")


@command.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address of this machine to listen on; others than the default need --keys.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8786,
    show_default=True,
    help="0: any free port.",
)
@_KEYS
@click.option(
    "--dashboard",
    type=click.IntRange(1, 65535),
    help="Port of a web page about the fleet, on this machine only (needs bokeh).",
)
@_TIED
@json_option
def scheduler(
    host: str,
    port: int,
    keys: Path | None,
    dashboard: int | None,
    tied: bool,
    as_json: bool,
) -> None:
    """Run a scheduler until it is interrupted.

    \b
    Example:
      tilewright fleet scheduler --host 192.168.1.2 --keys my-fleet
    """
    from tilewright.tune.fleet import server

    ready = _ready("scheduler", as_json)
    server.run_scheduler(ready, host, port, keys, dashboard, tied)


@command.command()
@click.argument("address")
@click.option(
    "--device",
    default="cpu=1",
    show_default=True,
    metavar="NAME=COUNT",
    help="What is offered, and how many programs at a time.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Physical cores of each program, at most.",
)
@_KEYS
@_TIED
@json_option
def worker(
    address: str,
    device: str,
    threads: int,
    keys: Path | None,
    tied: bool,
    as_json: bool,
) -> None:
    """Measure for the scheduler at ADDRESS until interrupted.

    \b
    Example:
      tilewright fleet worker tls://192.168.1.2:8786 --device cpu=1 --keys my-fleet
    """
    from tilewright.tune.fleet import server

    name, sign, count = device.partition("=")
    if not sign or not count.isdecimal() or not int(count):
        raise click.BadParameter(
            f"{device!r}: expected NAME=COUNT, such as cpu=1", param_hint="--device"
        )
    places = server.Places(name, int(count), threads)
    server.run_worker(_ready("worker", as_json), address, places, keys, tied)


@command.command()
@click.argument("address")
@_KEYS
@json_option
def status(address: str, keys: Path | None, as_json: bool) -> None:
    """Show the devices of the fleet at ADDRESS.

    \b
    Example:
      tilewright fleet status 127.0.0.1:8786
    """
    from tilewright.tune.fleet.runner import Fleet

    with closing(Fleet(address, keys)) as fleet:
        offered = fleet.offered
    if as_json:
        dump([_shown(device, count) for device, count in offered.items()])
        return
    rows = [list(map(str, _shown(d, count).values())) for d, count in offered.items()]
    heading = ["device", "places", "threads", "processor", "version"]
    say(table(heading, rows, "<>><<") if rows else "there are no workers")


def _shown(device: Any, count: int) -> dict[str, Any]:
    return {
        "device": device.name,
        "places": count,
        "threads": device.threads,
        "processor": device.processor,
        "version": device.version,
    }


def _ready(what: str, as_json: bool) -> Callable[[str], None]:
    def tell(address: str) -> None:
        # Flushed at once: the caller of this process waits for this line.
        text = json.dumps({"address": address}) if as_json else f"{what} at {address}"
        click.echo(text)

    return tell
