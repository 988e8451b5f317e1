"""A captured graph for given extents, if a rule needs some that are open.

PyTorch captures a graph once for all extents of a dimension and passes these at each call. Some
rules need numbers: derivatives, whose shapes are known; random numbers, drawn in a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Numbers = Mapping[Any, int]
# The position of an input, an axis of it or None for a number, and PyTorch's expression.
Place = tuple[int, int | None, Any]


def open_places(module: Any) -> list[Place]:
    """The extents of the graph's inputs that are open, and the numbers among its inputs."""
    found: list[Place] = []
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    for position, node in enumerate(places):
        about = node.meta.get("val")
        numbers: Iterable[tuple[int | None, Any]] = [(None, about)]
        if hasattr(about, "shape"):
            numbers = enumerate(about.shape)
        for axis, n in numbers:
            if is_open(n):
                found.append((position, axis, n.node.expr))
    return found


def numbers_of(places: Sequence[Place], args: Sequence[Any]) -> dict[Any, int]:
    """PyTorch's expressions of open extents, by the arguments of a call."""
    return {
        expression: int(args[n] if axis is None else args[n].shape[axis])
        for n, axis, expression in places
    }


def is_open(n: Any) -> bool:
    """Whether an extent, or a number that a graph takes, differs between calls."""
    return hasattr(n, "node")


def known(n: Any, numbers: Numbers) -> Any:
    """An extent, or a number made of extents, as a number; as it is if the numbers do not say."""
    if not is_open(n):
        return n
    found = n.node.expr.xreplace(numbers)
    if isinstance(found, int) or getattr(found, "is_Integer", False):
        return int(found)
    if getattr(found, "is_Float", False):
        return float(found)
    return n


def sized(module: Any, numbers: Numbers) -> Any:
    """The graph with these numbers in its descriptions and arguments. Its inputs are the same."""
    import torch

    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}

    def number_or_copy(n: Any) -> Any:
        held = known(n.meta.get("val"), numbers)
        if type(held) in (int, float):
            return held
        return copies[n]

    for node in module.graph.nodes:
        operand = copies.__getitem__ if node.op == "output" else number_or_copy
        copies[node] = graph.node_copy(node, operand)
        if "val" in node.meta:
            described = torch.utils._pytree.tree_map(
                lambda v: _described(v, numbers), node.meta["val"]
            )
            copies[node].meta["val"] = described
    found = torch.fx.GraphModule(module, graph)
    for node in graph.nodes:
        if node.op != "get_attr":
            continue
        name = str(node.target)
        inner = getattr(module, name, None)
        if hasattr(inner, "graph"):
            setattr(found, name, sized(inner, numbers))
    return found


def _described(held: Any, numbers: Numbers) -> Any:
    """PyTorch's description of a tensor or number, with the numbers that are known."""
    import torch

    if not isinstance(held, torch.Tensor):
        return known(held, numbers)
    sizes = [known(n, numbers) for n in held.shape]
    strides = [known(n, numbers) for n in held.stride()]
    start = known(held.storage_offset(), numbers)
    whole = [*held.shape, *held.stride(), held.storage_offset()]
    if not any(map(is_open, whole)) or any(map(is_open, [*sizes, *strides, start])):
        return held
    last = start + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    mode: Any = held.fake_mode
    with mode:
        memory = torch.empty(max(last + 1, start), dtype=held.dtype, device=held.device)
        return memory.as_strided(sizes, strides, start)
