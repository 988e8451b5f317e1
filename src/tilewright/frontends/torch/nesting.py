"""The nesting of an exported program's arguments and results, from PyTorch's trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

from tilewright.graph.nodes import Graph
from tilewright.runtime.nesting import (
    CONSTANT,
    ArgumentNesting,
    ContainerNode,
    FixedLeaf,
    Tree,
    field_names,
    is_plain,
    name_of,
)


class _Unknown(Exception):
    """A constant that an artifact cannot hold."""


def nesting_of(program: Any, graph: Graph) -> ArgumentNesting | None:
    """None if all are tensors in order, or if the graph's tensors differ from the program's."""
    spec = program.call_spec
    given = [s.arg for s in program.graph_signature.input_specs if _is_users(s)]
    got = [s.arg for s in program.graph_signature.output_specs if _is_users(s)]
    ends = ((spec.in_spec, given), (spec.out_spec, got))
    if any(s is None or s.num_leaves != len(args) for s, args in ends):
        return None
    try:
        arguments = _leaves(given, [v.name for v in graph.inputs])
        results = _leaves(got, [v.name for v in graph.outputs], True)
        taken = _tree(spec.in_spec, arguments)
        called = _tree(spec.out_spec, results)
    except (_Unknown, StopIteration):
        return None
    made = _nesting(program, taken, called)
    if made is None or is_plain(made.arguments, made.results):
        return None
    names = [v.name for v in graph.inputs], [v.name for v in graph.outputs]
    return made if made.fits(*names) else None


def _is_users(spec: Any) -> bool:
    return spec.kind.name in ("USER_INPUT", "USER_OUTPUT")


def _nesting(program: Any, taken: Tree, results: Tree) -> ArgumentNesting | None:
    """The nesting of the tuple of positional arguments and the dictionary of named ones."""
    match taken:
        case ContainerNode(parts=(ContainerNode() as first, ContainerNode() as rest)):
            count = len(first.parts) + len(rest.parts)
            names = _argument_names(program, count)
            names = [*names[: len(first.parts)], *map(str, rest.keys)]
            parts = (*first.parts, *rest.parts)
            pairs = tuple(zip(names, parts, strict=True))
            positional = len(first.parts)
            return ArgumentNesting(pairs, positional, results)
    return None


def _argument_names(program: Any, count: int) -> Sequence[str]:
    """The module's names for its arguments, or numbers if the program has no names."""
    signature = program.module_call_graph[0].signature
    names = getattr(signature, "forward_arg_names", None) or ()
    if len(names) == count and len(set(names)) == count:
        return [str(n) for n in names]
    return [f"argument {n}" for n in range(count)]


def _leaves(
    args: Sequence[Any], names: Sequence[str], outputs: bool = False
) -> Iterator[Tree]:
    """The kind of each leaf; constants among results are outputs, too, except None."""
    left = iter(names)
    found: list[Tree] = []
    for arg in args:
        if not hasattr(arg, "value"):
            found.append(next(left))
            continue
        if type(arg.value) not in CONSTANT or arg.value != arg.value:
            raise _Unknown
        also = outputs and arg.value is not None
        found.append(FixedLeaf(arg.value, next(left) if also else ""))
    return iter(found)


def _tree(spec: Any, leaves: Iterator[Tree]) -> Tree:
    kind = spec.type
    if kind is None:
        return next(leaves)
    parts = tuple(_tree(child, leaves) for child in spec.children())
    context = spec.context
    if kind.__name__ in ("list", "dict", "OrderedDict") and kind.__module__ in (
        "builtins",
        "collections",
    ):
        keys = () if context is None else tuple(context)
        if not all(type(k) in (str, int) for k in keys):
            raise _Unknown
        return ContainerNode(kind.__name__, parts, keys)
    # The context of PyTorch's own named tuples, such as `torch.return_types.sort`, is None.
    named = kind if kind.__module__ == "torch.return_types" else context
    if isinstance(named, type) and issubclass(named, tuple):
        names = field_names(named) or ()
        return ContainerNode("namedtuple", parts, names, name_of(named))
    if is_dataclass(kind) and isinstance(context, list):
        return _record(kind, parts, context)
    # A container that only its own code can rebuild: return its parts in order.
    return ContainerNode("tuple", parts)


def _record(kind: Any, parts: tuple[Tree, ...], context: list[Any]) -> ContainerNode:
    """A dataclass: PyTorch lists its fields (or those that are not None) and the others."""
    names = context
    if len(context) == 2 and all(isinstance(c, list) for c in context):
        names = [*context[0], *context[1]]
        parts = (*parts, *(FixedLeaf(None) for _ in context[1]))
    if len(names) != len(parts):
        raise _Unknown
    return ContainerNode("record", parts, tuple(map(str, names)), name_of(kind))
