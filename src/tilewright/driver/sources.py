"""Any source that `compile` takes as a Graph, without the rest of the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.driver.dims import Dims, check_made_for
from tilewright.driver.options import Options
from tilewright.driver.recipe import ModelRecipe
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.infer import Decomposition
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.specialize import specialize
from tilewright.loops.nodes import Kernel
from tilewright.runtime.model import OBJECT, Tensor


def import_model(
    source: Any,
    example_inputs: Sequence[Any],
    options: Options,
    standard: bool = False,
) -> Graph:
    """The Graph of any accepted source; standard: as for `frontends.load.load`."""
    with events.span("import"):
        from tilewright.frontends import torch

        torch.refuse_examples(source, example_inputs)
        if isinstance(source, ModelRecipe):
            source = source.make()
        if isinstance(source, Graph):
            check_free(source, options)
            return source
        from tilewright.frontends.load import load, of_torch

        if torch.is_module(source):
            return of_torch(
                source,
                example_inputs,
                dynamic_shapes=options.dynamic_shapes,
                limit=options.limit,
                inputs=options.inputs,
                standard=standard,
            )
        if options.dynamic_shapes is not None:
            raise InputError(
                "dynamic_shapes: only a torch.nn.Module is traced",
                hint="leave it out, and give values of symbolic dimensions as dims={...}",
            )
        if not isinstance(source, str | Path | bytes) and not hasattr(
            source, "opset_import"
        ):
            found = f"a {type(source).__name__}"
            hint = "give a path, bytes, an onnx.ModelProto, a torch.nn.Module or a tw.Graph"
            if isinstance(source, type):
                found, hint = f"the class {source.__name__}", "give an instance of it"
            raise InputError(f"cannot compile {found}", hint=hint)
        return load(
            source,
            memory_limit=options.limit,
            trust=options.trust,
            inputs=options.inputs,
            external_data_roots=options.external_data_roots,
            standard=standard,
        )


def check_free(source: Graph | Kernel, options: Options) -> None:
    """Raise InputError for `inputs` of a source without defaults."""
    if options.inputs:
        raise InputError(
            f"inputs: a {type(source).__name__} has no defaults: they are its constants",
            hint="compile the model that it was made from",
        )


def with_dims(
    graph: Graph, dims: Dims, options: Options, decompose: Decomposition = True
) -> Graph:
    """The graph with values for symbolic dimensions. decompose: as for `specialize`.

    Raises InputError for a dimension that the inputs do not have, a value that is not an extent, or
    values that the model is not made for (TW-SIZE).
    """
    symbols = {d for v in graph.inputs for d in v.shape or () if isinstance(d, str)}
    extents: dict[str, int] = {}
    for name, value in dims.items():
        if name not in symbols:
            have = listing([repr(s) for s in sorted(symbols)]) if symbols else "none"
            raise InputError(
                f"no dimension is called {name!r}", hint=f"the inputs have: {have}"
            )
        if isinstance(value, tuple | list):
            raise InputError(
                f"dimension {name!r} is {value!r}, which only compile supports",
                hint="give one value here",
            )
        if not isinstance(value, int | np.integer) or value < 0:
            raise InputError(
                f"dimension {name!r} is {value!r}", hint="give an integer of at least 0"
            )
        extents[name] = int(value)
    check_made_for(graph, extents)
    return specialize(
        graph,
        extents,
        fallback=OnnxFallback(),
        memory_limit=options.limit,
        decompose=decompose,
    )


def facts(graph: Graph) -> dict[str, Any]:
    """The facts about a model that its artifact keeps."""
    return {
        "files": list(graph.files),
        "origin": graph.origin,
        "defaults": {v.name: v.type_text for v in graph.defaults},
        "nesting": _nesting(graph),
        "warnings": list(graph.warnings),
        "declared": {name: list(axes) for name, axes in graph.declared.items()},
    }


def _nesting(graph: Graph) -> dict[str, Any] | None:
    """The nesting of arguments and results; None if their names differ from the imported ones."""
    nesting = graph.nesting
    names = [v.name for v in graph.inputs], [v.name for v in graph.outputs]
    return nesting.to_json() if nesting and nesting.fits(*names) else None


def tensor_of(v: Value) -> Tensor:
    """The type of a value as the runtime knows it."""
    if v.kind != "tensor" or v.dtype is None:
        return Tensor(v.name, OBJECT, None)
    if v.shape is None:
        return Tensor(v.name, v.dtype.name, None)
    return Tensor(
        v.name, v.dtype.name, tuple(d if isinstance(d, int) else None for d in v.shape)
    )
