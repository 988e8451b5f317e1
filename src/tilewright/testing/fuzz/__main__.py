"""The command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from tilewright.testing.fuzz.campaign import Campaign
from tilewright.testing.fuzz.generators import GENERATORS

FOLDER: Final = Path(__file__).resolve().parents[4] / "tests" / "fuzz"


@click.command(
    epilog="Example: python -m tilewright.testing.fuzz --generators graphs --jobs 1"
)
@click.option("--generators", default=",".join(GENERATORS), show_default=True,
              help="Commas between them.")  # fmt: skip
@click.option("--seconds", default=600.0, show_default=True, help="How long to run.")
@click.option("--programs", type=click.IntRange(min=1), help="At most so many.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1),
              help="Processes at a time.")  # fmt: skip
@click.option("--folder", default=FOLDER, type=click.Path(path_type=Path),
              help="Where the counts and the tests are.")  # fmt: skip
def main(
    generators: str,
    seconds: float,
    programs: int | None,
    jobs: int,
    folder: Path,
) -> None:
    """Run random programs; each failure becomes a test that fails. Ctrl-C ends it early."""
    names = generators.split(",")
    unknown = [n for n in names if n not in GENERATORS]
    if unknown:
        raise click.BadParameter(
            f"no {', '.join(unknown)}; there are {', '.join(GENERATORS)}"
        )
    campaign = Campaign([GENERATORS[n] for n in names], folder)
    campaign.run(seconds, jobs, programs)
    for line in campaign.summary():
        click.echo(line)
    sys.exit(1 if campaign.written else 0)


if __name__ == "__main__":
    main()
