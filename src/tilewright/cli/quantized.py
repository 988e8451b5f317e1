"""Running models on simulated accelerators, and comparing them with the float model.

For a machine that takes bytes only they are quantized first, by the inputs at hand.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.files import write_whole
from tilewright.base.text import human_time
from tilewright.cli import inputs
from tilewright.cli.model import load_graph, specialized
from tilewright.cli.options import CompileOptions, refuse
from tilewright.cli.output import dump, note, progress, say

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph
    from tilewright.targets.base import Network


# Options about native code and its runs.
NATIVE: Final = (
    "mcpu", "threads", "fallback", "math", "use_cache", "sanitize", "repeat", "profiled",
    "roofline", "trace", "certify", "why", "schedules",
)  # fmt: skip


def wanted(options: CompileOptions) -> bool:
    """Whether the target is such a machine."""
    if options.target == "cpu":
        return False
    from tilewright.targets import registry

    return any(
        registry.supplies(options.target, role) for role in ("network", "quantized")
    )


def made_for(
    graph: Graph, feeds: dict[str, Any], options: CompileOptions
) -> tuple[Network, bool]:
    """The model on the machine, and whether its scales are from these inputs alone."""
    from tilewright.targets import registry

    if registry.supplies(options.target, "network"):
        return registry.network(options.target, graph, options.description), False
    given = scales(options)
    return registry.quantized(options.target, graph, [feeds], **given), not given


def text(graph: Graph, emit: str | None, options: CompileOptions) -> str:
    """The machine's instructions, with scales from random inputs."""
    refuse(NATIVE, f"--target {options.target} has no native code", "Leave it out")
    if emit != "asm":
        raise UnsupportedError(
            f"there is no {emit or 'artifact'} for {options.target}",
            code="TW-TARGET",
            hint="use --emit asm, or `tilewright run`, which simulates it",
        )
    feeds = inputs.gather(inputs.of_graph(graph), (), None, 0, options.dims)
    with progress(f"compiling for {options.target}"):
        return made_for(graph, feeds, options)[0].text


def scales(options: CompileOptions) -> dict[str, Any]:
    """What `quantize` has written, as arguments. Raises InputError for another file."""
    return {} if options.scales is None else read_scales(options.scales)


def read_scales(path: Path) -> dict[str, Any]:
    """The scales in a file, as arguments. Raises InputError for another file, OSError."""
    try:
        found = json.loads(path.read_text())
        units = {str(name): float(unit) for name, unit in found["scales"].items()}
        return {"scales": units, "by": str(found["by"])}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"it is not a file of scales: {error}",
            where=str(path),
            hint="quantize writes such files",
        ) from None


def run(
    model: Path,
    options: CompileOptions,
    files: tuple[tuple[str, Path], ...],
    archive: Path | None,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run once on the inputs, and say what ran where and what came out."""
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.graph.interp import evaluate

    refuse(NATIVE, f"--target {options.target} simulates one run", "Leave it out")
    read = load_graph(model, options.dims, **options.reading())
    graph = specialized(read, options.dims)
    feeds = inputs.gather(inputs.of_graph(graph), files, archive, seed, options.dims)
    with progress(f"compiling {model.name} for {options.target}"):
        made, calibrated = made_for(graph, feeds, options)
        real = evaluate(graph, feeds, fallback=OnnxFallback())
    start = time.perf_counter()
    with progress(f"simulating {model.name}"):
        names = [v.name for v in graph.outputs]
        outputs = dict(zip(names, made(feeds), strict=True))
    seconds = time.perf_counter() - start
    if output is not None:
        write_whole(output, lambda file: save(file, outputs))
    errors = {n: float(np.abs(outputs[n] - real[n]).max(initial=0)) for n in names}
    ranges = {n: float(np.abs(real[n]).max(initial=0)) for n in names}
    if as_json:
        parts = made.report.splitlines()
        dump(
            {
                "parts": parts,
                "seconds": seconds,
                "largest_error": errors,
                "largest": ranges,
            }
        )
        return
    if calibrated:
        note(
            "scales come from this input alone; use quantize to compute them from samples"
        )
    say(made.report)
    for n in names:
        say(
            f"{n}: differs from the float model by at most {errors[n]:.3g}; peak {ranges[n]:.3g}"
        )
    say(f"simulated in {human_time(seconds)}")


def save(file: IO[bytes], outputs: dict[str, Any]) -> None:
    """Arrays by name as an .npz file."""
    np.savez(file, **{name: np.asarray(value) for name, value in outputs.items()})  # type: ignore[arg-type]
