"""The command line: finds the commands, turns errors into one line and an exit code."""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from traceback import walk_tb
from typing import Any, Final

import click

from tilewright import __version__
from tilewright.base import flags, modes
from tilewright.base.dims_hint import DimsHint
from tilewright.base.errors import ArgumentError, TilewrightError, TilewrightWarning
from tilewright.base.idle_threads import soon_asleep
from tilewright.base.text import did_you_mean, visible
from tilewright.cli import interrupt
from tilewright.cli.groups import CommandGroup

# Name -> the module of this package whose ``command`` it is. Loaded when it is used.
VERBS: Final[dict[str, str]] = {
    "demo": "demo",
    "run": "run",
    "compile": "compile",
    "explain": "explain",
    "optimize": "optimize",
    "quantize": "quantize",
    "bench": "bench",
    "verify": "verify",
    "check": "check",
    "explore": "explore",
    "doctor": "doctor",
    "cache": "cache",
    "tune": "tune",
    "fleet": "fleet",
    "records": "records",
    "generate": "generate",
    "embed": "embed",
    "serve": "serve",
    "completion": "completion",
}


class _Verbs(CommandGroup):
    """A group that imports a command's module only when it is used or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = VERBS.get(cmd_name)
        if module is None:
            return None
        with soon_asleep():
            command: click.Command = import_module(f"{__package__}.{module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = did_you_mean(args[0], self.list_commands(ctx))
            said = f"{error.message} {hint}"
            raise click.UsageError(said, error.ctx) from None


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="tilewright")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Compile deep-learning models to fast native code, and run them."""
    if ctx.invoked_subcommand != "doctor":  # which lists them as problems
        for line in flags.strangers():
            click.echo(visible(f"tilewright: warning: {line}"), err=True)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` by default) and return its exit code: 0, 1 or 2.

    Errors go to stderr as one line; with --json they are an object on stdout as well. Tracebacks
    only with TILEWRIGHT_DEBUG=1.
    """
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings(), interrupt.sent_again():
            _show_our_warnings_as_lines()
            # Outside standalone mode click returns what the verb returned, or ctx.exit's code.
            result = cli.main(
                args=arguments,
                prog_name="tilewright",
                standalone_mode=False,
                max_content_width=shutil.get_terminal_size().columns,
            )
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        shown = _present(error)
        if as_json:
            click.echo(json.dumps({"error": _usage(shown)}, indent=2))
        else:
            shown.show()
        return 2 if isinstance(error, click.UsageError) else 1
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted")
    except BrokenPipeError:
        # The reader of the output has exited, as in `tilewright ... | head`: nothing to report.
        sys.stderr.close()
        return 1
    except Exception as error:
        if interrupt.behind(error):
            return _fail("interrupted")
        if _debugging():
            raise
        if isinstance(error, TilewrightError) and isinstance(error.hint, DimsHint):
            error.hint = error.hint.flags or error.hint
        if as_json and not _is_of_printing(error):
            click.echo(json.dumps({"error": _as_dict(error)}, indent=2))
        return _fail(_described(error), 2 if isinstance(error, ArgumentError) else 1)


def _present(error: click.ClickException) -> click.ClickException:
    """The error; for an option that was replaced, an error that names the replacement."""
    if (
        not isinstance(error, click.NoSuchOption)
        or error.option_name not in modes.REPLACED
    ):
        return error
    name = error.option_name
    return click.UsageError(
        f"{name} was replaced: use {modes.REPLACED[name]}", error.ctx
    )


def _usage(error: click.ClickException) -> dict[str, object]:
    """A wrong command line, in the form of `TilewrightError.to_dict`."""
    context = getattr(error, "ctx", None)
    verb = "tilewright" if context is None else context.command_path
    return {
        "code": "TW-USAGE",
        "message": error.format_message(),
        "where": verb,
        "hint": f"{verb} --help lists what it takes",
    }


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror and _is_of_printing(error):
        return f"stdout: {error.strerror}"
    if isinstance(error, TilewrightError | OSError):
        return str(error)
    if isinstance(error, MemoryError):
        advice = "Set TILEWRIGHT_MEMORY_LIMIT to be warned in advance"
        return f"out of memory: {error}. {advice}"
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"internal error: {name}: {text}. {flags.DEBUG.name}=1 shows where; please report it"


def _is_of_printing(error: Exception) -> bool:
    """Whether the output could not be printed: the error comes from `click.echo`."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_code is click.echo.__code__


def _as_dict(error: Exception) -> dict[str, object]:
    if isinstance(error, TilewrightError):
        return error.to_dict()
    return {
        "code": type(error).__name__,
        "message": str(error),
        "where": None,
        "hint": None,
    }


def _debugging() -> bool:
    try:
        return flags.DEBUG.get()
    except TilewrightError:
        return False


def _fail(text: str, code: int = 1) -> int:
    click.echo(visible(f"tilewright: {' '.join(text.split())}"), err=True)
    return code


def _show_our_warnings_as_lines() -> None:
    """Print Tilewright's warnings as one line, without the source line."""
    others = warnings.showwarning

    def show(message: Any, category: Any, *rest: Any, **named: Any) -> None:
        if isinstance(category, type) and issubclass(category, TilewrightWarning):
            line = f"tilewright: warning: {' '.join(str(message).split())}"
            click.echo(visible(line), err=True)
        else:
            others(message, category, *rest, **named)

    warnings.showwarning = show
