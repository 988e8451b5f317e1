"""`tilewright cache`: inspect or clear the kernel cache on disk."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Final

import click

from tilewright.base import flags
from tilewright.base.errors import InputError
from tilewright.base.store import FileStore, default_store
from tilewright.base.text import human_bytes, human_time, plural
from tilewright.cli.groups import CommandGroup
from tilewright.cli.options import json_option
from tilewright.cli.output import dump, facts, say, table

ROWS: Final = 20


@click.group(cls=CommandGroup)
def command() -> None:
    """Inspect or clear the kernel cache on disk.

    \b
    Example:
      tilewright cache stat
      tilewright cache list --limit 5
      tilewright cache clear
    """


@command.command("list")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="Number of rows; default: 20, or all with --json.",
)
@json_option
def list_entries(limit: int | None, as_json: bool) -> None:
    """List the entries, most recently used first.

    \b
    Example:
      tilewright cache list --limit 5
    """
    from tilewright.driver.cache_entries import described

    store = _store()
    entries = store.entries()
    shown = entries[: limit or (None if as_json else ROWS)]
    what = [described(store, e.key) for e in shown]
    if as_json:
        dump(
            [
                {
                    "key": e.key,
                    "kind": k,
                    "name": n or None,
                    "bytes": e.size,
                    "used": e.used,
                }
                for e, (k, n) in zip(shown, what)
            ]
        )
        return
    now = time.time()
    rows = [
        [
            f"{kind} {name}".rstrip(),
            human_bytes(e.size),
            f"{human_time(max(0.0, now - e.used))} ago",
            e.key,
        ]
        for e, (kind, name) in zip(shown, what)
    ]
    say(table(["what", "size", "last used", "key"], rows, "<>><"))
    if len(entries) > len(rows):
        say(f"... {plural(len(entries), 'entry', 'entries')} in all")


@command.command()
@json_option
def stat(as_json: bool) -> None:
    """Show the location and size of the cache, and its size limit.

    \b
    Example:
      tilewright cache stat --json
    """
    stats = _store().stats()
    if as_json:
        dump(asdict(stats))
        return
    say(
        facts(
            [
                ("folder", str(stats.root)),
                ("entries", str(stats.entries)),
                (
                    "size",
                    f"{human_bytes(stats.size)} of at most {human_bytes(stats.max_bytes)}",
                ),
                ("writable", flags.Flag.shown(stats.writable)),
            ]
        )
    )


@command.command()
@json_option
def clear(as_json: bool) -> None:
    """Delete all entries.

    \b
    Example:
      tilewright cache clear
    """
    store = _store()
    size = sum(entry.size for entry in store.entries())
    count = store.clear()
    if as_json:
        dump({"deleted": count, "bytes": size})
    else:
        say(f"{plural(count, 'entry', 'entries')} deleted, {human_bytes(size)}")


def _store() -> FileStore:
    store = default_store()
    if store is None:
        raise InputError(
            "the cache is off",
            where=flags.CACHE.name,
            hint=f"Unset {flags.CACHE.name} to use it",
        )
    return store
