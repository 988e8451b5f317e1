"""The backend of `torch.compile(model, backend="tilewright")`, found by its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.driver.options import Options
from tilewright.graph.nodes import Graph


def backend(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that PyTorch captured.

    options: of `tw.compile`, from `torch.compile(model, backend="tilewright", options={...})`.
    mode: "default" or None; the others are Inductor's. Raises InputError for an option or a mode
    that does not exist.
    """
    from tilewright.base.errors import InputError
    from tilewright.driver.compile import compile as compile_graph
    from tilewright.frontends.onnx.reference import OnnxFallback
    from tilewright.frontends.torch import dynamo
    from tilewright.frontends.torch.aten.importer import ImportSettings

    if mode not in (None, "default"):
        raise InputError(
            f"mode={mode!r} is for PyTorch's own backend",
            hint='give options={...} of tw.compile, such as {"math": "fast"}',
        )
    given = dict(options or {})
    tiered = given.pop("tiered", False)
    chosen = Options.of(given)

    def compiled(graph: Graph) -> Callable[..., Any]:
        made: Callable[..., Any] = compile_graph(graph, tiered=tiered, **given)
        return made

    settings = ImportSettings(chosen.limit, OnnxFallback())
    return dynamo.backend(module, example_inputs, compiled, settings)
