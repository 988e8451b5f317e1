"""Artifacts for ranges of shapes, which `tilewright compile --dim n=1..64` writes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.base.dims_hint import flag_value
from tilewright.base.text import human_bytes, human_time, plural
from tilewright.cli.options import CommandOptions, refuse
from tilewright.cli.output import dump, progress, say
from tilewright.cli.wrong_option import OptionError
from tilewright.runtime.threads import keep_threads

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph


def refuse_ranges(options: CommandOptions, who: str) -> None:
    """Raise InputError for a range of extents; `who` takes only one value."""
    for name, extents in options.ranges.items():
        raise OptionError(
            f"{name} has no single value, but {flag_value(extents)}, which {who} does not take",
            where="--dim",
            hint=f"give one value: --dim {name}=1",
        )


def write(
    read: Graph,
    place: Path,
    options: CommandOptions,
    given: dict[str, Any],
    as_json: bool,
) -> None:
    """Compile all shapes to one artifact, and report the file."""
    from tilewright.driver import sources, steps
    from tilewright.driver.dims import check_made_for, check_named, parted, possible
    from tilewright.driver.options import Options
    from tilewright.runtime import ranged_bundle

    refuse(["certify"], "it compares one shape", "Give one value for each --dim")
    fixed, allowed = parted(dict(options.dim))
    check_named(read, allowed)
    check_made_for(read, dict(options.dim))
    chosen = Options(**given)
    graph = sources.with_dims(read, fixed, chosen) if fixed else read
    start = time.perf_counter()
    with progress(f"compiling {place.name}"):
        made = steps.ranged(graph, possible(graph, allowed), chosen)
        seconds = time.perf_counter() - start
        meta = keep_threads(made.meta, options.threads)
        ranged_bundle.save(replace(made, meta=meta), place)
    together = sum(len(s.covers) for s in made.shared)
    size = place.stat().st_size
    if as_json:
        facts = {
            "artifact": str(place),
            "bytes": size,
            "compile_seconds": seconds,
            "shapes": {"alone": len(made.single), "shared": together},
        }
        dump(facts)
        return
    say(
        f"{place}: {human_bytes(size)}, code for {plural(len(made.single), 'shape')} alone and "
        f"{plural(together, 'shape')} together, compiled in {human_time(seconds)}"
    )
