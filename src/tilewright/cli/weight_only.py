"""`tilewright quantize --weights`: a model with its weights in few bits, for any runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tilewright.cli.model import load_graph
from tilewright.cli.options import CompileOptions
from tilewright.cli.output import dump, progress, say

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph

BITS: Final = {"int4": 4, "int8": 8}
FOR_WEIGHTS: Final = ("group", "form", "asymmetric")
MEGABYTE: Final = 1e6


def weight_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of weight-only quantization."""
    for option in (
        click.option(
            "--asymmetric",
            is_flag=True,
            help="With --weights: a zero point for each group as well.",
        ),
        click.option(
            "--form",
            type=click.Choice(["nbits", "qdq"]),
            default="nbits",
            show_default=True,
            help="With --weights: MatMulNBits, or DequantizeLinear (opset 21).",
        ),
        click.option(
            "--group",
            type=int,
            default=32,
            show_default=True,
            help="With --weights: numbers that share a scale.",
        ),
        click.option(
            "--weights",
            type=click.Choice(list(BITS)),
            help="Quantize the weights of matrix products alone.",
        ),
    ):
        command = option(command)
    return command


def quantize_weights(
    model: Path,
    output: Path | None,
    options: CompileOptions,
    as_json: bool,
    *,
    weights: str,
    group: int,
    form: str,
    asymmetric: bool,
) -> None:
    """Write the model with its weights in few bits, and say what that came to."""
    from tilewright.base import events
    from tilewright.frontends.onnx.save import save_onnx
    from tilewright.graph.passes.weight_only import weight_only

    output = output or model.with_suffix(f".{weights}.onnx")
    graph = load_graph(model, options.dims, **options.reading())
    with progress(f"quantizing {model.name}"), events.record() as seen:
        made = weight_only(
            graph,
            BITS[weights],
            group,
            symmetric=not asymmetric,
            form=form,
        )
    save_onnx(made, output)
    errors = [e.fields for e in seen if e.kind == "weight-only"]
    before, after = (_bytes(g) for g in (graph, made))
    if as_json:
        dump({"model": str(output), "bytes": [before, after], "products": errors})
        return
    for e in errors:
        say(f"{e['node']}: relative error of the weights {e['error']:.2e}")
    sizes = f"{before / MEGABYTE:.1f} MB of constants became {after / MEGABYTE:.1f} MB"
    say(f"{output}: {len(errors)} products in {weights}, {sizes}")


def _bytes(graph: Graph) -> int:
    """Of the constants as a file holds them: numbers of 4 bits by the two."""
    known = graph.constants.items()
    return sum(v.dtype.bits * a.size // 8 for v, a in known if v.dtype is not None)
