"""A graph with numbers for its symbolic extents: its operations are typed again, one by one.

Shapes that are now known become constants, and an `If` with a known condition becomes its branch.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, ModelError, TilewrightError, placed
from tilewright.graph.extent_limits import blamed_on, extents_of
from tilewright.graph.infer import FOLD_ELEMENTS, Decomposition, FallbackProvider, Typer
from tilewright.graph.nodes import Graph, Operation, Shape, Value
from tilewright.graph.ops.errors import definition_of_node, place
from tilewright.graph.ops.registry import Array
from tilewright.graph.renaming import name_outputs
from tilewright.graph.unroll import unroll
from tilewright.runtime.conditions import remaining


def specialize(
    graph: Graph,
    extents: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Array] | None = None,
    fallback: FallbackProvider | None = None,
    memory_limit: int | None = None,
    decompose: Decomposition = True,
) -> Graph:
    """`graph` retyped with given symbolic extents, input shapes or input values.

    extents: symbolic extent -> number. shapes: input -> its whole shape. values: input -> array;
    such an input remains an input of the graph, but everything that depends on it is specialized.
    fallback, memory_limit: as for `Typer`. decompose: whether operators are decomposed as their
    definitions say; a function of the operations that would take the place of one decides for each.
    Raises InputError for a name that the graph does not have, and for extents at which a condition
    of the graph does not hold (TW-SIZE); ModelError and ExecutionError for those that an operator
    rejects, with a hint that names the dimension.
    """
    left = remaining(graph.conditions, extents or {})
    by_name = {v.name: v for v in graph.inputs}
    for name in (*(shapes or ()), *(values or ())):
        if name not in by_name:
            raise InputError(
                f"the model has no input {name!r}",
                hint=f"Its inputs: {', '.join(by_name)}",
            )
    typer = Typer(fallback, memory_limit, dict(graph.constants), decompose)
    env = _sized_inputs(graph, extents or {}, shapes or {})
    inputs = tuple(env[v] for v in graph.inputs)
    for name, array in (values or {}).items():
        env[by_name[name]] = typer.constant(f"{name}/value", np.asarray(array))
    with blamed_on(extents_of(graph, inputs), partial(_fits, graph, fallback)):
        _retype(graph, typer, env)
    outputs = tuple(env[v] for v in graph.outputs)
    used = {v for op in typer.operations for v in op.reads} | set(outputs)
    kept = {v: a for v, a in typer.known.items() if v in used}
    special = replace(
        graph,
        inputs=inputs,
        outputs=outputs,
        operations=tuple(typer.operations),
        constants=kept,
        conditions=left,
    )
    return name_outputs(special, [v.name for v in graph.outputs])


def _fits(
    graph: Graph, fallback: FallbackProvider | None, extents: Mapping[str, int]
) -> bool:
    try:
        typing_at(graph, extents, fallback)
    except TilewrightError:
        return False
    return True


@dataclass(frozen=True, eq=False, slots=True)
class InferredTypes:
    """The values of a graph with their types at given extents, and the arrays that are known."""

    env: Mapping[Value, Value]
    known: Mapping[Value, Array]


def typing_at(
    graph: Graph,
    extents: Mapping[str, int],
    fallback: FallbackProvider | None = None,
    memory_limit: int | None = None,
    fold_elements: int = FOLD_ELEMENTS,
) -> InferredTypes:
    """The types of a graph's values at these extents, including values of taken branches.

    fold_elements: as for `Typer`.
    """
    known = dict(graph.constants)
    typer = Typer(fallback, memory_limit, known, fold_elements=fold_elements)
    env = _sized_inputs(graph, extents, {})
    _retype(graph, typer, env)
    return InferredTypes(env, typer.known)


def _sized_inputs(
    graph: Graph,
    extents: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
) -> dict[Value, Value]:
    """The constants, and the inputs with numeric extents."""
    env: dict[Value, Value] = {v: v for v in graph.constants}
    for v in graph.inputs:
        shape: Shape | None = v.shape
        if v.name in shapes:
            shape = tuple(int(d) for d in shapes[v.name])
        elif shape is not None:
            shape = tuple(extents.get(d, d) if isinstance(d, str) else d for d in shape)
        env[v] = replace(v, shape=shape)
    return env


def _retype(
    graph: Graph,
    typer: Typer,
    env: dict[Value, Value],
) -> None:
    """Apply the operations of `graph` to `typer`; `env` maps old values to new ones."""
    for op in graph.operations:
        branch = known_branch(op, env, typer.known)
        if branch is not None:
            inline_branch(branch, typer, env)
            for old, result in zip(op.outputs, branch.outputs, strict=False):
                if old is not None:
                    env[old] = env.get(result, result)
            continue
        with definition_of_node(op):
            if op.subgraphs and unroll(
                op, typer, env, lambda g: inline_branch(g, typer, env)
            ):
                continue
        inputs = tuple(None if v is None else env.get(v, v) for v in op.inputs)
        draft = typed_subgraphs(replace(op, inputs=inputs), typer, env)
        with placed(f"graph {graph.name!r}"):
            results = typer.apply(draft)
        for old, new in zip(op.outputs, results, strict=False):
            if old is not None and new is not None:
                env[old] = new


def known_branch(
    op: Operation,
    env: Mapping[Value, Value],
    known: Mapping[Value, Array],
) -> Graph | None:
    """The branch that an `If` takes, if its condition is known."""
    if op.qualified != "If" or op.inputs[0] is None:
        return None
    condition = known.get(env.get(op.inputs[0], op.inputs[0]))
    if condition is None:
        return None
    if condition.size != 1:
        raise ModelError(
            f"its condition has {condition.size} elements", where=place(op)
        )
    if bool(condition.reshape(-1)[0]):
        name = "then_branch"
    else:
        name = "else_branch"
    branch = op.attr(name)
    return branch if isinstance(branch, Graph) else None


def inline_branch(
    branch: Graph,
    typer: Typer,
    env: dict[Value, Value],
) -> None:
    """Add the branch's operations to the enclosing graph."""
    for v, a in branch.constants.items():
        typer.known[v] = a
        env[v] = v
    _retype(branch, typer, env)


def output_types(
    body: Graph,
    shapes: Sequence[Shape | None],
    outer: Mapping[Value, Array],
    fallback: FallbackProvider | None,
) -> Sequence[Value]:
    """A subgraph's outputs, typed from the shapes of its inputs and captured values.

    Unchanged if the subgraph does not fit these; it could not run on them either.
    """
    env = {v: replace(v, shape=a.shape) for v, a in outer.items()}
    small = {env[v]: a for v, a in outer.items() if a.size <= FOLD_ELEMENTS}
    typer = Typer(fallback, known={**small, **body.constants})
    env |= {v: v for v in body.constants}
    given = zip(body.inputs, shapes, strict=True)
    env |= {v: v if shape is None else replace(v, shape=shape) for v, shape in given}
    try:
        _retype(body, typer, env)
    except TilewrightError:
        return body.outputs
    return [env.get(v, v) for v in body.outputs]


def typed_subgraphs(
    op: Operation, typer: Typer, env: Mapping[Value, Value]
) -> Operation:
    """`op` with its subgraphs retyped. env: maps the values that they capture."""
    if not op.subgraphs:
        return op
    attributes = {
        k: _subgraph(a, typer, env) if isinstance(a, Graph) else a
        for k, a in op.attributes.items()
    }
    return replace(op, attributes=attributes)


def _subgraph(graph: Graph, typer: Typer, env: Mapping[Value, Value]) -> Graph:
    inner = typer.inner()
    scope = dict(env)
    for v, a in graph.constants.items():
        inner.known[v] = a
        scope[v] = v
    for v in graph.inputs:
        scope[v] = v
    _retype(graph, inner, scope)
    outputs = tuple(scope.get(v, v) for v in graph.outputs)
    used = {v for op in inner.operations for v in op.reads} | set(outputs)
    if isinstance(inner.known, ChainMap):
        own = inner.known.maps[0]
    else:
        own = inner.known
    kept = {v: a for v, a in own.items() if v in used}
    return Graph(
        graph.name,
        graph.inputs,
        outputs,
        tuple(inner.operations),
        kept,
    )
