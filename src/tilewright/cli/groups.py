"""Groups of commands whose help has whole summaries."""

from __future__ import annotations

from typing import Final

import click

_WHOLE: Final = 1000  # letters; no first sentence of a command is longer


class CommandGroup(click.Group):
    """A group of commands whose help wraps summaries, where click cuts them."""

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        found = (
            (name, self.get_command(ctx, name)) for name in self.list_commands(ctx)
        )
        rows = [(n, c.get_short_help_str(_WHOLE)) for n, c in found if c is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
