"""`tilewright completion`: a script for shells to complete verbs, options and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_TILEWRIGHT_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    Example:
      tilewright completion bash > ~/.local/share/bash-completion/completions/tilewright
      tilewright completion zsh > ~/.zfunc/_tilewright
      tilewright completion fish > ~/.config/fish/completions/tilewright.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    root = click.get_current_context().find_root().command
    click.echo(made(root, {}, "tilewright", _VARIABLE).source())
