"""Libraries for C programs, which `tilewright compile` writes by the suffix of -o."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from tilewright.base.text import human_bytes, human_time
from tilewright.cli.model import load_graph, specialized
from tilewright.cli.options import CommandOptions, refuse
from tilewright.cli.output import dump, progress, say

# The suffixes of `driver.library.container`, repeated to avoid importing it.
SUFFIXES: Final = (".so", ".a", ".o", ".wasm")


def write(
    model: Path,
    output: Path,
    header: Path | None,
    triple: str | None,
    options: CommandOptions,
    as_json: bool,
) -> None:
    """Compile the model to a library and report the files."""
    from tilewright.driver.library import compile_library

    refuse(
        ("certify", "fallback", "sanitize"),
        "it is only for artifacts",
        "Leave it out, or write -o model.tw",
    )
    graph = specialized(
        load_graph(model, options.dims, **options.reading()), options.dims
    )
    given = {n: v for n, v in options.keywords().items() if n not in _OWN}
    start = time.perf_counter()
    with progress(f"compiling {model.name}"):
        made = compile_library(
            graph,
            output,
            header=header,
            mcpu=options.mcpu.split(","),
            triple=triple,
            **given,
        )
    seconds = time.perf_counter() - start
    found = made.described
    facts: dict[str, Any] = {
        "library": str(made.path),
        "header": str(made.header),
        "manifest": str(made.manifest),
        "bytes": made.path.stat().st_size,
        "compile_seconds": seconds,
        "triple": found.triple,
        "processors": list(found.processors),
        "workspace": list(found.workspace),
    }
    if as_json:
        dump(facts)
        return
    say(
        f"{made.path}, {made.header}, {made.manifest}: {human_bytes(facts['bytes'])} for "
        f"{found.triple} ({', '.join(found.processors)}), compiled in {human_time(seconds)}; "
        f"a call needs {human_bytes(sum(found.workspace))} of workspace"
    )


_OWN: Final = ("dims", "mcpu", "fallback", "sanitize")
