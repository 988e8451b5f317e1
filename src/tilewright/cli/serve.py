"""`tilewright serve`: an OpenAI-compatible server of the model of a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tilewright.cli.generate import PRECISIONS
from tilewright.cli.options import PATH, json_option, threads_option
from tilewright.cli.output import note, progress
from tilewright.cli.wrong_option import OptionError


@click.command()
@click.argument("folder", type=PATH)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; non-local addresses need --api-key.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0: any free port.",
)
@click.option(
    "--api-key",
    metavar="KEY|@FILE",
    help="Key that clients must send; @FILE hides it from other users.",
)
@click.option(
    "--max-clients",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Concurrent answers; further requests wait.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Maximum per answer.",
)
@click.option(
    "--context",
    type=click.IntRange(2),
    help="Maximum tokens of prompt and answer; default: up to 2048.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="float32",
    show_default=True,
    help="Storage type of the weights.",
)
@threads_option("Default: physical cores.")
@json_option
def command(
    folder: Path,
    host: str,
    port: int,
    api_key: str | None,
    max_clients: int,
    max_tokens: int,
    context: int | None,
    precision: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Serve the model in FOLDER over HTTP with OpenAI's API, until interrupted.

    \b
    Example:
      tilewright serve ./SmolLM2-135M-Instruct --max-clients 4
      curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Hi"}]}'
    """
    from tilewright.llm.serve.server import serve

    def ready(address: str) -> None:
        # Flushed at once: the caller of this process waits for this line.
        text = json.dumps({"address": address}) if as_json else f"serving at {address}"
        click.echo(text)

    serve(
        folder,
        ready,
        host,
        port,
        key=_key(api_key),
        clients=max_clients,
        tokens=max_tokens,
        preparing=progress(f"compiling {folder.name}"),
        context=context,
        precision=precision,
        threads=threads,
    )
    note("stopped")


def _key(given: str | None) -> str | None:
    """The key itself, or the contents of the file after an @."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise OptionError(
            f"the key cannot be read from {given[1:]!r}: {why}",
            where="--api-key",
            hint="give a key, or @ and the name of a text file that holds it",
        ) from None
