"""`tw.grad`, `tw.value_and_grad`, `tw.jvp`: a model's derivatives as a Graph, to compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from tilewright.base.arguments import expect
from tilewright.base.errors import InputError
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.keywords import ReadOptions
from tilewright.driver.options import Options
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.ops.derivative import filled
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.passes.differentiate import (
    along,
    differentiate,
    extended,
    free_constants,
    inputs_of,
    loss_of,
    without_loops,
)
from tilewright.graph.renaming import name_outputs


def grad(
    source: Any,
    by: Sequence[str] | str | None = None,
    example_inputs: Sequence[Any] = (),
    *,
    loss: str | None = None,
    dims: Mapping[str, int] | None = None,
    **options: Unpack[ReadOptions],
) -> Graph:
    """The graph that computes the derivatives of a model's loss, one result per name in `by`.

    source, example_inputs, dims, options: as for `tw.compile`; options of compilation are for
    `tw.compile`, which takes the result. by: names of inputs, or of constants, which become inputs
    after the others; None: all float inputs. loss: the output to differentiate, a float scalar;
    required if there are several outputs. The derivative by `x` has x's type and the name `grad.x`.
    Raises InputError for a loss that is not a scalar, an input that it does not depend on, and an
    option of compilation; UnsupportedError for an operator without a derivative.
    """
    return _differentiated(source, by, example_inputs, loss, dims, options)[0]


def value_and_grad(
    source: Any,
    by: Sequence[str] | str | None = None,
    example_inputs: Sequence[Any] = (),
    *,
    loss: str | None = None,
    dims: Mapping[str, int] | None = None,
    **options: Unpack[ReadOptions],
) -> Graph:
    """The graph that computes a model's outputs and then the derivatives of its loss.

    source, by, example_inputs, loss, dims, options: as for `grad`. The results are all outputs of
    the model, in its order, then `grad.x` for each `x` in `by`. Raises as `grad`.
    """
    return _differentiated(source, by, example_inputs, loss, dims, options)[1]


def jvp(
    source: Any,
    by: Sequence[str] | str | None = None,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    **options: Unpack[ReadOptions],
) -> Graph:
    """The model with directional derivatives: the products of its Jacobian with a vector.

    source, by, example_inputs, dims, options: as for `grad`. After the model's inputs, the graph
    has an input `tangent.x`, the direction, for each `x` in `by`. After the model's outputs, it has
    an output `tangent.y` for each float output `y`: the derivative of `y` in that direction. Raises
    as `grad`; outputs may have any shape.
    """
    graph, wanted = _read(source, by, example_inputs, dims, options)
    with exclusive():
        tangents = {v: replace(v, name=f"tangent.{v.name}") for v in wanted}
        f = Fragment("jvp", graph.constants)
        moved = along(graph, tangents, f)
        reals = [y for y in graph.outputs if y.dtype is not None and y.dtype.is_float]
        found = [moved[y] if y in moved else filled(f, y, 0) for y in reals]
        inputs = (*graph.inputs, *tangents.values())
        both = extended(replace(graph, inputs=inputs), f, (*graph.outputs, *found))
        names = [v.name for v in graph.outputs]
        return name_outputs(both, [*names, *(f"tangent.{y.name}" for y in reals)])


def _differentiated(
    source: Any,
    by: Sequence[str] | str | None,
    example_inputs: Sequence[Any],
    loss: str | None,
    dims: Mapping[str, int] | None,
    options: Mapping[str, Any],
) -> tuple[Graph, Graph]:
    if loss is not None:
        expect(loss=loss)
    graph, wanted = _read(source, by, example_inputs, dims, options)
    with exclusive():
        y = loss_of(graph, loss)
        f = Fragment("grad", graph.constants)
        found = differentiate(graph, y, wanted, f)
        results = [f"grad.{v.name}" for v in wanted]
        alone = extended(graph, f, found)
        both = extended(graph, f, (*graph.outputs, *found))
        before = [v.name for v in graph.outputs]
        return name_outputs(alone, results), name_outputs(both, [*before, *results])


def _read(
    source: Any,
    by: Sequence[str] | str | None,
    example_inputs: Sequence[Any],
    dims: Mapping[str, int] | None,
    options: Mapping[str, Any],
) -> tuple[Graph, list[Value]]:
    """The model as a graph without loops, and the inputs to differentiate by."""
    from tilewright.driver import sources

    expect(by=by, dims=dims)
    chosen = _reading(options)
    names = [by] if isinstance(by, str) else by
    with exclusive():
        graph = sources.import_model(source, example_inputs, chosen)
        if dims:
            graph = sources.with_dims(graph, dims, chosen)
        graph = without_loops(graph, onnx_fallback())
        constants = {v.name for v in graph.constants}
        free = [n for n in names or () if n in constants]
        graph, _ = free_constants(graph, free)
        wanted = inputs_of(graph, names)
        if not wanted:
            raise InputError("the model has no float inputs", hint="name constants")
        return graph, wanted


def _reading(given: Mapping[str, Any]) -> Options:
    """The options by which the model is read. Raises InputError for any other."""
    options = Options.of(given)
    others = [name for name in given if name not in ReadOptions.__annotations__]
    if others:
        raise InputError(
            f"{', '.join(others)}: a derivative is a Graph, and nothing is compiled",
            hint="pass it to tw.compile together with the derivative",
        )
    return options
