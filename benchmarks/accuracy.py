"""Outputs and inner tensors of each network against a float64 reference."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import models, reference
from benchmarks.harness import directory_option, networks_option, threads_option
from benchmarks.score import BARS
from tilewright.cli.engines import ENGINES
from tilewright.cli.rounds import difference

ERROR_BAR = BARS["network"].error


def expose(path: Path, tensors: list[str], target: Path) -> None:
    """Writes the model to `target` with the tensors as further outputs, in this order."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(path)
    infos = [helper.make_tensor_value_info(t, TensorProto.FLOAT, None) for t in tensors]
    model.graph.output.extend(infos)
    onnx.save(model, target)


def measure(name: str, directory: Path, engine: str, threads: int) -> dict[str, float]:
    """Per tensor, the largest difference from float64 relative to the tensor's peak.

    The outputs come from the model unchanged; the inner tensors from a second one that exposes
    them, because a tensor that leaves the graph cannot be fused away.
    """
    path = models.build(name, directory)
    with np.load(reference.write(name, path)) as archive:
        expected = {key: archive[key] for key in archive.files}
    outputs = [key for key in expected if key.startswith("out.")]
    inner = [key for key in expected if key.startswith("mid.")]
    feeds = models.inputs(name)
    got = dict(zip(outputs, ENGINES[engine](path, threads)(feeds)))
    with tempfile.TemporaryDirectory() as scratch:
        exposed = Path(scratch) / f"{name}.onnx"
        expose(path, [key.removeprefix("mid.") for key in inner], exposed)
        values = ENGINES[engine](exposed, threads)(feeds)
    got |= dict(zip(inner, values[len(outputs) :]))
    return {key: difference([got[key]], [expected[key]]) for key in expected}


@click.command(epilog="Example: python -m benchmarks.accuracy --networks resnet50")
@networks_option
@click.option(
    "--engine",
    default="tilewright",
    show_default=True,
    type=click.Choice(list(ENGINES)),
)
@threads_option(2)
@directory_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per network.")
def main(
    networks: list[str],
    engine: str,
    threads: int,
    directory: Path,
    as_json: bool,
) -> None:
    """Compare outputs and inner tensors with float64; exit with 1 if the bar is missed."""
    view = Table(
        title=f"{engine}: largest difference from float64, relative to the peak"
    )
    for heading in ("network", "outputs", "inner tensors", "worst", "where"):
        view.add_column(
            heading, justify="left" if heading in ("network", "where") else "right"
        )
    problems: list[str] = []
    for name in networks:
        row: dict[str, Any] = {"network": name, "engine": engine, "threads": threads}
        try:
            errors = measure(name, directory, engine, threads)
        except Exception as failure:  # the other networks are still worth measuring
            row["failed"] = f"{type(failure).__name__}: {failure}"
            problems.append(f"{name}: {row['failed']}".splitlines()[0])
        else:
            row["errors"] = errors
            worst = max(
                errors, key=lambda key: (errors[key] != errors[key], errors[key])
            )
            if not errors[worst] <= ERROR_BAR:
                problems.append(
                    f"{name}: {worst}: {errors[worst]:.1e}, bar {ERROR_BAR:.0e}"
                )
            outputs = max(errors[key] for key in errors if key.startswith("out."))
            count = sum(key.startswith("mid.") for key in errors)
            view.add_row(
                name, f"{outputs:.1e}", str(count), f"{errors[worst]:.1e}", worst
            )
        if as_json:
            click.echo(json.dumps(row))
    if not as_json:
        Console().print(view)
    for problem in problems:
        click.echo(f"missed: {problem}", err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
