"""`tilewright quantize --weights`: a model with its weights in few bits, for any runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.base.text import human_bytes, plural
from tilewright.cli.model import check_onnx_place, load_graph
from tilewright.cli.options import CommandOptions
from tilewright.cli.output import dump, progress, say
from tilewright.cli.quantize_options import BITS

if TYPE_CHECKING:
    from tilewright.graph.nodes import Graph


def quantize_weights(
    model: Path,
    output: Path | None,
    options: CommandOptions,
    as_json: bool,
    *,
    weights: str,
    group: int,
    form: str,
    asymmetric: bool,
) -> None:
    """Write the model with its weights in few bits, and report errors and sizes."""
    from tilewright.base import events
    from tilewright.frontends.onnx.export import are_standard
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.frontends.onnx.save import save_onnx
    from tilewright.graph.passes.weight_only import weight_only
    from tilewright.graph.specialize import specialize

    output = output or model.with_suffix(f".{weights}.onnx")
    read = load_graph(model, options.dims, standard=True, **options.reading())
    graph = specialize(read, fallback=OnnxFallback(), decompose=are_standard)
    check_onnx_place(output)
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
    sizes = f"{human_bytes(before)} of constants became {human_bytes(after)}"
    say(f"{output}: {plural(len(errors), 'product')} in {weights}, {sizes}")


def _bytes(graph: Graph) -> int:
    """The bytes of the constants in a file: 4-bit numbers are packed in pairs."""
    known = graph.constants.items()
    return sum(v.dtype.bits * a.size // 8 for v, a in known if v.dtype is not None)
