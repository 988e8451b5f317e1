"""`tilewright embed`: vectors of texts by the encoder of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click
import numpy as np

from tilewright.base.files import write_whole
from tilewright.base.text import plural
from tilewright.cli.options import OUT, PATH, json_option, threads_option
from tilewright.cli.output import dump, progress, say


@click.command()
@click.option("--model", "folder", type=PATH, required=True, help="The folder.")
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls"]),
    help="Pooling of token vectors; default: as configured in the folder, else the mean.",
)
@click.option("--raw", is_flag=True, help="Do not divide vectors by their norms.")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long.")
@threads_option("Default: physical cores.")
@click.option("-o", "--output", type=OUT, help="Write the vectors to an .npy file.")
@click.argument("texts", nargs=-1, required=True)
@json_option
def command(
    folder: Path,
    pooling: str | None,
    raw: bool,
    truncate: bool,
    threads: int | None,
    output: Path | None,
    texts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the embeddings of TEXTS as JSON, one per line, or write them to a file.

    \b
    Example:
      tilewright embed --model ./all-MiniLM-L6-v2 "a cat on a mat" "a dog"
      tilewright embed --model ./all-MiniLM-L6-v2 "a cat" "a dog" -o vectors.npy
    """
    from tilewright.llm.encoder import load_embedder

    model = load_embedder(folder, pooling=pooling, normalized=not raw, threads=threads)
    with progress(f"reading {plural(len(texts), 'text')}"):
        vectors = model(texts, truncate=truncate)
    if output is not None:

        def save(file: IO[bytes]) -> None:
            np.save(file, vectors)

        write_whole(output, save)
        if not as_json:
            count, width = vectors.shape
            say(f"{output}: {plural(count, 'vector')} of {plural(width, 'number')}")
            return
    if as_json:
        pairs = zip(texts, vectors, strict=True)
        found = [{"text": text, "vector": v.tolist()} for text, v in pairs]
        dump({"model": str(folder), "vectors": found})
        return
    for vector in vectors:
        say("[" + ", ".join(f"{x:.6g}" for x in vector) + "]")
