"""`tilewright verify`: compare a compiled model, or each kernel, with a float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.base.dataclass import dataclass
from tilewright.base.text import plural
from tilewright.cli import certificate, inputs, kernels
from tilewright.cli.model import (
    check_onnx_place,
    compile_model,
    extents,
    is_artifact,
    load_given,
    specialized,
)
from tilewright.cli.options import (
    AMOUNT,
    COMPILE,
    OUT,
    CommandOptions,
    allow,
    compile_options,
    input_options,
    json_option,
    model_argument,
    refuse,
)
from tilewright.cli.output import dump, progress, say

if TYPE_CHECKING:
    from tilewright.cli.diverge import Divergence
    from tilewright.graph.nodes import Graph


@click.command()
@model_argument
@input_options
@click.option(
    "--tolerance", type=AMOUNT, help="Allowed difference, relative to the peak."
)
@click.option(
    "--kernels",
    "alone",
    is_flag=True,
    help="Test each kernel in isolation, in guarded memory.",
)
@click.option(
    "--minimize", type=OUT, help="Write the smallest failing part to this ONNX file."
)
@compile_options(*(name for name in COMPILE if name not in ("scales", "jit")))
@json_option
def command(
    model: Path,
    files: tuple[tuple[str, Path], ...],
    archive: Path | None,
    seed: int,
    tolerance: float | None,
    alone: bool,
    minimize: Path | None,
    options: CommandOptions,
    as_json: bool,
) -> int:
    """Compare MODEL (.onnx, .pt2) with a float64 reference; exit with 1 if they differ.

    On a mismatch it names the first operator that diverges. For an artifact (.tw) it shows the
    certificate stored when it was compiled.

    \b
    Example:
      tilewright verify model.onnx
      tilewright verify model.onnx --inputs samples.npz --tolerance 1e-5
      tilewright verify model.onnx --kernels
    """
    from tilewright.cli.diverge import asked_for
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.graph.specialize import specialize

    if is_artifact(model):
        why = "an artifact contains machine code, not the model"
        hint = "Give the .onnx or .pt2 file it was compiled from"
        allow(["as_json"], why, hint, str(model))
        _certificate(model, as_json)
        return 0
    if minimize is not None:
        check_onnx_place(minimize)
    graph, options = load_given(model, options, files, archive)
    if alone:
        names = ("files", "archive", "tolerance", "minimize")
        refuse(names, "--kernels generates the inputs of each kernel", "Leave it out")
        return kernels.verify(specialized(graph, options.dims), options, seed, as_json)
    feeds = inputs.gather(inputs.of_graph(graph), files, archive, seed, options.dims)
    graph = specialize(graph, extents=extents(graph, feeds), fallback=OnnxFallback())

    def native(part: Graph, data: Mapping[str, Any]) -> Sequence[Any]:
        exe = compile_model(part, replace(options, dim=()), model.name, data)
        results = exe({name: data[name] for name in (t.name for t in exe.inputs)})
        return [results] if len(part.outputs) == 1 else list(results)

    allowed = asked_for(options.precision, tolerance)
    compared = _Compared(graph, feeds, native, allowed)
    return _report(compared, minimize, as_json)


@dataclass(frozen=True)
class _Compared:
    """A model with inputs, a function that compiles and runs parts of it, and the tolerance."""

    graph: Graph
    feeds: Mapping[str, Any]
    native: Callable[[Graph, Mapping[str, Any]], Sequence[Any]]
    tolerance: float | None


def _report(c: _Compared, minimize: Path | None, as_json: bool) -> int:
    """Compare, print the result, and return the exit code."""
    from tilewright.cli import diverge

    got = c.native(c.graph, c.feeds)
    with progress("computing the reference"):
        reference = diverge.reference(c.graph, c.feeds)
        rows = certificate.rows_of(c.graph, got, reference, c.tolerance)
    failed = not all(row["ok"] for row in rows)
    found = written = None
    if failed:
        with progress("looking for the first operator that differs"):
            found = diverge.first(c.graph, c.feeds, c.native, c.tolerance)
        if minimize is not None:
            written = _smallest(c, found, minimize)
    if as_json:
        said = {
            "ok": not failed,
            "outputs": rows,
            "divergence": found and found.to_dict(),
        }
        dump(said | ({"minimized": written} if minimize is not None else {}))
        return int(failed)
    say(certificate.outputs(rows))
    if failed:
        say(
            f"\n{found}"
            if found
            else "\nno single operator differs when each is compared"
        )
    if written is not None:
        count = written["operators"]
        left = plural(count, "operator that still fails", "operators that still fail")
        say(
            f"\n{written['model']}: {left}; "
            f"tilewright verify {written['model']} --inputs {written['inputs']} shows it"
        )
    return int(failed)


def _certificate(model: Path, as_json: bool) -> None:
    """Show the certificate of an artifact."""
    from tilewright.runtime import bundle

    found = bundle.load(model).meta.get("certificate")
    certificate.show(model, found if isinstance(found, Mapping) else None, as_json)


def _smallest(c: _Compared, found: Divergence | None, path: Path) -> dict[str, Any]:
    """Write the smallest part that still fails; return its paths and size."""
    from tilewright.cli import minimize

    with progress("looking for the smallest part that is wrong"):
        part, data = minimize.smallest(c.graph, c.feeds, c.native, found, c.tolerance)
        beside = minimize.write(part, data, path)
    return {
        "model": str(path),
        "inputs": str(beside),
        "operators": len(part.operations),
    }
