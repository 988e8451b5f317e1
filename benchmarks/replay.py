"""Records the code of every benchmark network, to compare it with another commit's.

A pure refactoring leaves all generated code unchanged:

    python -m benchmarks.replay before      # on the old commit
    python -m benchmarks.replay after --against before
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import models
from benchmarks.harness import (
    directory_option,
    networks_option,
    thread_counts_option,
)

_HEAD = re.compile(r"^# (.*)$", re.MULTILINE)


def kernels(text: str) -> dict[str, str]:
    """The kernels of `tilewright compile --emit llvm` by their order and what they compute."""
    parts = _HEAD.split(text)[1:]
    named = zip(parts[::2], parts[1::2], strict=True)
    return {f"{number}: {head}": body for number, (head, body) in enumerate(named)}


def differences(before: str, after: str) -> list[str]:
    """The kernels of one setting whose code differs or that only one side has."""
    old, new = kernels(before), kernels(after)
    return [head for head in old | new if old.get(head) != new.get(head)]


def write(name: str, mcpu: str, threads: int, models_at: Path, folder: Path) -> Path:
    """The file with the LLVM text of a network for one processor and number of threads."""
    from tilewright import driver

    text = driver.text(
        models.build(name, models_at), "llvm", mcpu=mcpu, threads=threads
    )
    path = folder / f"{name}-{mcpu}-{threads}.ll"
    path.write_text(text, encoding="utf-8")
    return path


def _listed(_context: object, _parameter: object, value: str) -> list[str]:
    return value.split(",")


@click.command(epilog="Example: python -m benchmarks.replay after --against before")
@click.argument("folder", type=click.Path(path_type=Path))
@networks_option
@click.option(
    "--mcpu", default="x86-64-v3,x86-64-v4", callback=_listed, show_default=True
)
@thread_counts_option()
@directory_option
@click.option(
    "--against", type=click.Path(exists=True, path_type=Path), help="An earlier FOLDER."
)
def main(
    folder: Path,
    networks: Sequence[str],
    mcpu: Sequence[str],
    threads: Sequence[int],
    directory: Path,
    against: Path | None,
) -> None:
    """Write the LLVM text of networks into FOLDER; exit with 1 if it differs from another's."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = 0
    settings = [(n, m, t) for n in networks for m in mcpu for t in threads]
    for name, processor, count in settings:
        path = write(name, processor, count, directory, folder)
        if against is None:
            continue
        earlier = against / path.name
        if not earlier.exists():
            raise click.ClickException(
                f"{earlier} is not there: write it with the same options"
            )
        found = differences(
            earlier.read_text(encoding="utf-8"), path.read_text(encoding="utf-8")
        )
        changed += len(found)
        for head in found:
            click.echo(f"{path.name}: {head} differs")
    verdict = "" if against is None else f", {changed} kernels differ"
    click.echo(f"{len(settings)} settings written{verdict}")
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
