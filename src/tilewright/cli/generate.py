"""`tilewright generate`: text from the language model of a Hugging Face folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.base.text import plural, visible
from tilewright.cli.options import (
    AMOUNT,
    IDS,
    PATH,
    json_option,
    refuse,
    threads_option,
)
from tilewright.cli.output import dump, note, progress, say

if TYPE_CHECKING:
    from tilewright.llm.answer import GeneratedToken
    from tilewright.llm.model import LanguageModel

PRECISIONS = ("float32", "bfloat16", "float16", "int8", "int4")


@click.command()
@click.argument("folder", type=PATH)
@click.option("--prompt", help="The text to continue.")
@click.option(
    "--ids",
    type=IDS,
    help="The tokens to continue, in place of a text, such as 5,17; needs no tokenizer.",
)
@click.option(
    "--chat", is_flag=True, help="Apply the model's chat template to the prompt."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Maximum number of tokens.",
)
@click.option(
    "--temperature",
    type=AMOUNT,
    default=0.0,
    show_default=True,
    help="0 selects the most likely token; 1 samples from the model's probabilities.",
)
@click.option(
    "--top-k",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Sample from this many tokens; 0: from all.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="Sample from the most likely tokens with this total probability.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the sampling.",
)
@click.option("--stop", multiple=True, help="Stop before this text; may be repeated.")
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="float32",
    show_default=True,
    help="Storage type of the weights.",
)
@click.option(
    "--context",
    type=click.IntRange(2),
    help="Maximum tokens of prompt and answer; default: up to 2048.",
)
@threads_option("Default: physical cores.")
@json_option
def command(
    folder: Path,
    prompt: str | None,
    ids: list[int] | None,
    chat: bool,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop: tuple[str, ...],
    precision: str,
    context: int | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Continue a prompt with the language model in FOLDER (Transformers format).

    \b
    Example:
      tilewright generate ./model --prompt "Once upon a time" --max-tokens 100
      tilewright generate ./model --prompt "Why is the sky blue?" --chat --precision int4
      tilewright generate ./model --ids 5,17
    """
    from tilewright.llm.model import load

    if (prompt is None) == (ids is None):
        raise click.UsageError("give either --prompt or --ids")
    if prompt is None:
        refuse(["chat"], "a template is filled in with a text", "Give --prompt")
    start = time.perf_counter()
    model = load(folder, precision=precision, context=context, threads=threads)
    given = _ids(model, prompt, ids, chat)
    tokens = model.generate(
        given,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop,
    )
    with progress(f"compiling {folder.name}"):
        model.prepare()
    begin = time.perf_counter()
    found, taken = _timed(tokens, shown=not as_json)
    facts = _facts(len(given), found, begin - start, taken)
    if as_json:
        text = "".join(map(str, found))
        dump({"text": text, "tokens": [t.id for t in found], **facts})
        return
    # Without a tokenizer there is no text: the ids, as --ids takes them.
    say("" if any(map(str, found)) else ",".join(str(t.id) for t in found))
    rate = facts["tokens_per_second"]
    speed = f", then {rate:.1f} tokens/s" if rate else ""
    note(
        f"prepared in {begin - start:.1f} s; {plural(len(given), 'token')} read in "
        f"{facts['first_token_seconds']:.2f} s{speed}"
    )


def _ids(
    model: LanguageModel, prompt: str | None, ids: list[int] | None, chat: bool
) -> list[int]:
    """The ids to continue. A chat template has the special tokens in its text."""
    if prompt is None or not chat:
        return model.encode(ids or [] if prompt is None else prompt)
    text = model.tokenizer.chat([{"role": "user", "content": prompt}])
    return model.tokenizer.encode(text, special=False)


def _timed(
    tokens: Iterator[GeneratedToken], shown: bool
) -> tuple[list[GeneratedToken], list[float]]:
    """The tokens, and the time of each in seconds. shown: print them as they come."""
    found, taken = [], []
    start = time.perf_counter()
    for token in tokens:
        taken.append(time.perf_counter() - start)
        found.append(token)
        if shown:
            click.echo(visible(token.text), nl=False)
    return found, taken


def _facts(
    prompt: int, found: list[GeneratedToken], prepared: float, taken: list[float]
) -> dict[str, Any]:
    spent = taken[-1] - taken[0]
    return {
        "prompt_tokens": prompt,
        "generated_tokens": len(found),
        "prepare_seconds": prepared,
        "first_token_seconds": taken[0],
        "tokens_per_second": (len(found) - 1) / spent if spent else None,
    }
