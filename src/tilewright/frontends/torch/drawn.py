"""Random numbers of a captured graph, drawn by PyTorch before the rest runs.

Dropout in training is `rand_like(x) > p`. Random numbers depend only on shapes, so a node that
draws becomes an input of the graph; its numbers come from PyTorch's generator, in the graph's
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.errors import UnsupportedError
from tilewright.frontends.torch.aten.decompositions import DRAWS
from tilewright.frontends.torch.aten.importer import nodes
from tilewright.frontends.torch.aten.operators.random import RANDOM
from tilewright.frontends.torch.aten.rules import name_of

Draw = Callable[[], Any]


def draws_first(module: Any) -> tuple[Any, Sequence[Draw]]:
    """A graph whose last inputs are its random numbers, and a function that draws them per call.

    A graph that draws nothing is unchanged; a draw in a shape known only at run time stays.
    """
    import torch

    found = [n for n in module.graph.nodes if _draw(n) is not None]
    if not found:
        return module, ()
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    result = graph.graph_copy(module.graph, copies)
    graph.output(result)
    draws = []
    last = [n for n in graph.nodes if n.op == "placeholder"][-1:]
    for node in found:
        copied = copies[node]
        if last:
            where = graph.inserting_after(last[0])
        else:
            where = graph.inserting_before()
        with where:
            placed = graph.placeholder(f"drawn_{node.name}")
        placed.meta = dict(node.meta)
        copied.replace_all_uses_with(placed)
        graph.erase_node(copied)
        draws.append(_draw(node))
        last = [placed]
    return torch.fx.GraphModule(module, graph), [d for d in draws if d is not None]


def check_drawn(module: Any) -> None:
    """Raise UnsupportedError for random numbers that the graph would draw itself.

    They would not be those of PyTorch's generator.
    """
    for node, target in nodes(module):
        name = name_of(target)
        if name in RANDOM or name.rpartition(".")[0] in RANDOM:
            raise UnsupportedError(
                f"{name} ({node.name}) draws in a shape or a way of its own",
                hint="PyTorch draws these random numbers",
            )


def _draw(node: Any) -> Draw | None:
    """A function that draws for a node; None if it does not draw, or in an unknown shape."""
    import torch

    if node.op == "call_function":
        name = DRAWS.get(name_of(node.target))
    else:
        name = None
    if name is None or node.kwargs.get("memory_format") is not None:
        return None
    held = node.meta["val"]
    if not all(type(n) is int for n in held.shape) or held.device.type != "cpu":
        return None
    # As in memory: numbers like those of a transposed tensor are drawn in its order.
    order = sorted(range(held.dim()), key=lambda axis: -held.stride(axis))
    back = sorted(range(held.dim()), key=order.__getitem__)
    draw, shape = getattr(torch, name), tuple(held.shape[axis] for axis in order)
    return lambda: draw(shape, dtype=held.dtype).permute(back)
