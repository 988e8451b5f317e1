"""`quantize()`: converts a float model to 8-bit integers with sample data, in ONNX's QDQ form."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from tilewright.base import events
from tilewright.base.arguments import expect, expect_choice
from tilewright.base.errors import ArgumentError, InputError
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.compile import compile as compiled
from tilewright.driver.options import Options
from tilewright.driver.sized import SizedExecutable
from tilewright.driver.sources import import_model, with_dims
from tilewright.frontends.onnx.export import are_standard
from tilewright.graph.nodes import Graph
from tilewright.graph.quantize import QuantizationRecipe, Quantized
from tilewright.graph.quantize import quantize as quantized
from tilewright.graph.quantize.calibrate import Run, Sample
from tilewright.graph.quantize.data import samples_of
from tilewright.graph.quantize.metrics import METRICS

if TYPE_CHECKING:
    from tilewright.driver.keywords import QuantizeOptions

_READING = ("threads", "memory_limit", "trust", "external_data_roots", "inputs")


def quantize(
    source: Any,
    data: Any,
    *,
    example_inputs: Sequence[Any] = (),
    dims: Mapping[str, int] | None = None,
    max_drop: float | None = None,
    metric: str = "both",
    keep: Collection[str] = (),
    threads: int | None = None,
    reading: Mapping[str, Any] | None = None,
    **recipe: Unpack[QuantizeOptions],
) -> Quantized:
    """Quantize a float32 model to 8 bits: products of constant weights become products of bytes.

    source, example_inputs, dims: as for `compile`; a dimension has one value. data: samples that
    determine the ranges of activations: arrays by the names of inputs, each with several samples
    along its first axis, or a list of such dictionaries with one sample each. The last quarter is
    held out for evaluation. max_drop: the largest permitted loss of top-1 agreement and cosine
    similarity with the float model (0.005 is half a percent); layers that lose too much stay in
    float. metric: "both", or "cosine" if the outputs are not class scores. keep: layers that stay
    in float in any case. threads: of the runs that measure ranges and losses. reading: options of
    `compile` for reading the source. recipe:

    - method: "min-max", "percentile" (with percentile=99.99), "entropy" or "mse": how to choose the
      ranges of activations
    - activations: "uint8", asymmetric, or "int8", symmetric
    - rounding: "nearest" or "gptq": how to round weights; they are int8 with one scale per output
      channel
    - equalize: give weights of neighboring layers equal ranges
    - smooth: strength, 0 to 1, of moving outliers of activations into weights (SmoothQuant)
    - search: search for such factors by the error of the rounded weights (AWQ)
    - correct_bias: correct the mean error that rounded weights cause in results

    Returns (graph, report); `compile` takes the graph, `tilewright.frontends.onnx.save.save_onnx`
    writes it for any runtime. Raises InputError for data that do not match the inputs, and for
    unknown options.
    """
    expect(dims=dims, max_drop=max_drop, keep=keep, threads=threads, reading=reading)
    expect_choice("metric", metric, METRICS)
    chosen = recipe_of(recipe)
    options = Options.of({"threads": threads, **_known(reading or {})})
    graph = import_model(source, example_inputs, options, standard=True)
    graph = with_dims(graph, dims or {}, options, are_standard)
    with events.span("quantize"):
        return quantized(
            graph,
            samples_of(graph, data),
            chosen,
            lambda g: runner(g, threads),
            max_drop=max_drop,
            metric=metric,
            keep=keep,
            fallback=onnx_fallback(),
        )


def recipe_of(given: Mapping[str, Any]) -> QuantizationRecipe:
    """The options as a QuantizationRecipe. Raises InputError for an unknown option."""
    unknown = sorted(set(given) - set(QuantizationRecipe.__dataclass_fields__))
    if unknown:
        raise InputError(
            f"quantize has no option {', '.join(unknown)}",
            hint=f"choose from {', '.join(QuantizationRecipe.__dataclass_fields__)}",
        )
    return QuantizationRecipe(**given)


def runner(graph: Graph, threads: int | None = None) -> Run:
    """Compile a graph for this machine; the function runs it, with inputs and outputs by name."""
    exe = compiled(graph, threads=threads)
    assert not isinstance(exe, SizedExecutable)
    names = [v.name for v in graph.outputs]

    def run(sample: Sample) -> Mapping[str, Any]:
        return dict(zip(names, map(np.asarray, exe.run(sample)), strict=True))

    return run


def _known(reading: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(str(name) for name in reading if name not in _READING)
    if unknown:
        raise ArgumentError(
            f"reading: unknown option {', '.join(unknown)}",
            hint=f"choose from {', '.join(_READING)}",
        )
    return reading
