"""Certificates: the reference, the data and the errors of an artifact's comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.errors import ArtifactError, ExecutionError, InputError
from tilewright.cli.output import dump, say, table

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph
    from tilewright.runtime.model import CompiledModel


def rows_of(
    graph: Graph, got: Sequence[Any], expected: Sequence[Any], tolerance: float | None
) -> list[dict[str, Any]]:
    """A row for each output: its type, its difference from the reference, and the tolerance."""
    from tilewright.cli import diverge

    rows: list[dict[str, Any]] = []
    for value, ours, reference in zip(graph.outputs, got, expected):
        error, allowed = (
            diverge.gap(ours, reference),
            diverge.tolerance(value.dtype, tolerance),
        )
        rows.append(
            {"output": value.name, "type": value.type_text, "difference": error,
             "allowed": allowed, "ok": error <= allowed, "not_finite": _not_finite(ours)}
        )  # fmt: skip
    return rows


def _not_finite(array: Any) -> int:
    """How many values are NaN or infinite; NaNs agree with NaNs, and are rarely what is wanted."""
    given = np.asarray(array)
    if given.dtype.kind in "OUSbiu":
        return 0
    return given.size - int(np.count_nonzero(np.isfinite(given)))


def certify(
    model: CompiledModel,
    graph: Graph,
    seed: int,
    threads: int | None,
    tolerance: float | None = None,
) -> dict[str, Any]:
    """Run a compiled model and, in float64, its graph on random data, and compare the results.

    tolerance: the largest difference allowed, relative to the peak, if not that of the dtype.

    Raises ExecutionError (TW-CERTIFY) if an output is wrong, and ArtifactError if the model cannot
    run here.
    """
    from tilewright import __version__
    from tilewright.cli import diverge, inputs
    from tilewright.runtime.executable import Executable

    exe = Executable(model, threads=threads)
    feeds = inputs.gather(inputs.of_graph(graph), (), None, seed, {})
    results = exe({name: feeds[name] for name in (t.name for t in exe.inputs)})
    got = [results] if len(graph.outputs) == 1 else list(results)
    rows = rows_of(graph, got, diverge.reference(graph, feeds), tolerance)
    for row in rows:
        if not row["ok"]:
            raise ExecutionError(
                f"the output {row['output']!r} differs by {row['difference']:.2g} of its peak on "
                f"random inputs of seed {seed}; {row['allowed']:.2g} is allowed",
                code="TW-CERTIFY",
                where=f"graph {graph.name!r}",
                hint="Nothing was written. Find the operator with tilewright verify",
            )
    return {
        "reference": "the graph, operator by operator, in float64",
        "version": __version__,
        "seed": seed,
        "inputs": {v.name: v.type_text for v in graph.inputs},
        "outputs": rows,
        "threads": exe.threads,
        "math": model.meta.get("math"),
    }


def show(path: Path, found: Mapping[str, Any] | None, as_json: bool) -> None:
    """Print an artifact's certificate. Raises InputError if it has none."""
    if found is None:
        raise InputError(
            "the artifact has no certificate",
            where=str(path),
            hint="compile it with tilewright compile --certify",
        )
    try:
        text = _text(found)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ArtifactError("its certificate is malformed", where=str(path)) from None
    if as_json:
        dump({"certificate": found})
    else:
        say(text)


def _text(found: Mapping[str, Any]) -> str:
    inputs = ", ".join(f"{name}: {kind}" for name, kind in found["inputs"].items())
    return "\n".join(
        [
            f"compared with {found['reference']}",
            f"on random inputs of seed {found['seed']}: {inputs or 'none'}",
            f"by tilewright {found['version']}, math {found['math']}, threads {found['threads']}",
            "",
            outputs(found["outputs"]),
        ]
    )


def outputs(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of outputs."""
    cells = [
        [r["output"], r["type"], f"{r['difference']:.2e}", f"{r['allowed']:.0e}",
         _verdict(r)]
        for r in rows
    ]  # fmt: skip
    return table(["output", "type", "difference", "allowed", ""], cells, "<<>><")


def _verdict(row: Mapping[str, Any]) -> str:
    """``ok``, with the number of values that are not finite; certificates of before have none."""
    said = "ok" if row["ok"] else "differs"
    count = row.get("not_finite", 0)
    return f"{said}, {count} not finite" if count else said
