"""The frame of the command: finds the verbs, turns errors into one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from tilewright.base import flags
from tilewright.base.errors import TilewrightError

# Verb -> the module of this package whose ``command`` is it. Loaded when the verb is used.
VERBS: Final[dict[str, str]] = {}


class _Verbs(click.Group):
    """A group that imports a verb's file only when that verb, or the list of all, is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = VERBS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = import_module(f"{__package__}.{module}").command
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilewright")
def cli() -> None:
    """Compile deep-learning models to fast native code, and run them."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and give its exit code: 0, 1 or 2.

    Errors of ours and the system's go to stderr as one line; tracebacks only with
    TILEWRIGHT_DEBUG=1.
    """
    try:
        # Outside standalone mode click gives back what the verb returned, or the code of ctx.exit.
        result = cli.main(args=arguments, prog_name="tilewright", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        error.show()
        return 2 if isinstance(error, click.UsageError) else 1
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted")
    except BrokenPipeError:
        # The reader of our output has gone, as in `tilewright ... | head`: nobody to tell.
        sys.stderr.close()
        return 1
    except (TilewrightError, OSError) as error:
        if _debugging():
            raise
        return _fail(str(error))


def _debugging() -> bool:
    try:
        return flags.DEBUG.get()
    except TilewrightError:
        return False


def _fail(text: str) -> int:
    click.echo(f"tilewright: {text}", err=True)
    return 1
