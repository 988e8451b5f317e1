"""`tw.optimize`: searches for an equivalent graph of lower cost by substitutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from tilewright.base import modes
from tilewright.base.arguments import expect, expect_choice
from tilewright.base.errors import InputError
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.options import Options
from tilewright.driver.sources import import_model
from tilewright.driver.steps import build
from tilewright.driver.substitution import search
from tilewright.graph.specialize import specialize
from tilewright.graph.substitute.optimize import OptimizeOutcome, OptimizeSettings
from tilewright.search.result import SearchLimits

if TYPE_CHECKING:
    from tilewright.driver.keywords import CompileOptions


def optimize(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    cost: str | Mapping[str, float] = "time",
    alpha: float = 1.05,
    budget: int = 100,
    patience: int | None = 5,
    seconds: float | None = None,
    strategy: str = "backtrack",
    **options: Unpack[CompileOptions],
) -> OptimizeOutcome:
    """Search for the cheapest graph that substitutions lead to.

    source, example_inputs, dims, options: as for `compile`, which takes the result's `graph`;
    `to_onnx` writes it for any runtime. cost: "time", "measured", "flops", "bytes" or "launches",
    or weights by these names, to minimize their weighted sum. alpha: expand graphs that cost less
    than alpha times the best. budget: the number of graphs to expand in each part of the model.
    patience: leave a part after so many expansions in a row without a cheaper graph; None: never.
    seconds: a time limit. strategy: "backtrack", or "saturate", which ignores alpha, budget and
    patience.

    Rules that hold only for finite numbers are used with `math="fast"`. Raises InputError for
    symbolic extents without a value in `dims`, and for invalid settings.
    """
    expect(
        dims=dims,
        cost=cost,
        alpha=alpha,
        budget=budget,
        patience=patience,
        seconds=seconds,
    )
    expect_choice("strategy", strategy, modes.STRATEGIES)
    chosen = Options.of(options)
    if "optimize" in options:
        raise InputError(
            f"optimize={chosen.optimize!r}: this option is for compile",
            hint="leave it out: the settings of a search are alpha, budget and patience",
        )
    graph = import_model(source, example_inputs, chosen, standard=True)
    if dims:
        graph = specialize(graph, dims, fallback=onnx_fallback(), decompose=False)
    settings = OptimizeSettings(
        alpha, budget, patience, math=chosen.math, strategy=strategy
    )
    weights = {cost: 1.0} if isinstance(cost, str) else cost
    return search(
        graph, chosen, build, settings, weights, SearchLimits(seconds=seconds)
    )
