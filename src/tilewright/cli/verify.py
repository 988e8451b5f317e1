"""`tilewright verify`: a compiled model against the float64 reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli import inputs
from tilewright.cli.model import compile_model, extents, load_graph
from tilewright.cli.options import (
    AMOUNT,
    CompileOptions,
    compile_options,
    input_options,
    json_option,
    model_argument,
)
from tilewright.cli.output import dump, progress, say, table

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph


@click.command()
@model_argument
@input_options
@click.option("--tolerance", type=AMOUNT, help="Allowed difference, as a share of the peak.")
@compile_options
@json_option
def command(
    model: Path,
    files: tuple[tuple[str, Path], ...],
    archive: Path | None,
    seed: int,
    tolerance: float | None,
    options: CompileOptions,
    as_json: bool,
) -> int:
    """Compare MODEL (.onnx, .pt2), compiled, with a float64 reference; exit with 1 if they differ.

    On a mismatch it names the first operator that diverges.

    \b
    Example:
      tilewright verify model.onnx
      tilewright verify model.onnx --inputs samples.npz --tolerance 1e-5
    """
    from tilewright.cli import diverge
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.graph.infer import specialise

    graph = load_graph(model, options.memory_limit, options.trust)
    feeds = inputs.gather(inputs.of_graph(graph), files, archive, seed, options.dims)
    graph = specialise(graph, extents=extents(graph, feeds), fallback=OnnxFallback())

    def native(part: Graph, data: Mapping[str, Any]) -> Sequence[Any]:
        exe = compile_model(part, replace(options, dim=()), model.name, data)
        results = exe({name: data[name] for name in (t.name for t in exe.inputs)})
        return [results] if len(part.outputs) == 1 else list(results)

    got = native(graph, feeds)
    with progress("computing the reference"):
        expected = diverge.reference(graph, feeds)
    rows: list[dict[str, Any]] = []
    for value, ours, reference in zip(graph.outputs, got, expected):
        error, allowed = diverge.gap(ours, reference), diverge.tolerance(value.dtype, tolerance)
        rows.append(
            {"output": value.name, "type": value.type_text, "difference": error,
             "allowed": allowed, "ok": error <= allowed}
        )  # fmt: skip
    failed = not all(row["ok"] for row in rows)
    found = None
    if failed:
        with progress("looking for the first operator that differs"):
            found = diverge.first(graph, feeds, native, tolerance)
    if as_json:
        dump({"ok": not failed, "outputs": rows, "divergence": found and found.to_dict()})
        return int(failed)
    cells = [
        [r["output"], r["type"], f"{r['difference']:.2e}", f"{r['allowed']:.0e}",
         "ok" if r["ok"] else "differs"]
        for r in rows
    ]  # fmt: skip
    say(table(["output", "type", "difference", "allowed", ""], cells, "<<>><"))
    if failed:
        say(f"\n{found}" if found else "\nno single operator differs when each is compared")
    return int(failed)
