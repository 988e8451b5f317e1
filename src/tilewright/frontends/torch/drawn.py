"""Random numbers of a captured graph, drawn by PyTorch before the rest runs.

Dropout in training is `rand_like(x) > p`. Random numbers depend only on shapes and on constants, so
a node that draws becomes an input of the graph; its numbers come from PyTorch's generator, in the
graph's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.errors import UnsupportedError
from tilewright.frontends.torch.aten.importer import nodes
from tilewright.frontends.torch.aten.operators.random import is_random
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
        if is_random(name):
            raise UnsupportedError(
                f"{name} ({node.name}) draws in a shape or a way of its own",
                hint="PyTorch draws these random numbers",
            )


def _draw(node: Any) -> Draw | None:
    """A function that draws for a node; None if it does not draw, or in an unknown shape.

    Of its tensors, an operator that draws reads shapes and strides only. A number that the graph
    computes is unknown before it runs.
    """
    import torch

    if node.op != "call_function" or not is_random(name_of(node.target)):
        return None
    like = {n: n.meta["val"] for n in node.all_input_nodes}
    about = [node.meta["val"], *like.values()]
    if not all(map(_is_placed, about)):
        return None

    def draw() -> Any:
        made = {
            n: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
            for n, t in like.items()
        }
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), made.__getitem__)
        return node.target(*args, **kwargs)

    return draw


def _is_placed(held: Any) -> bool:
    """Whether it is a tensor of a processor's memory, with known extents."""
    if not hasattr(held, "stride"):
        return False
    numbers = [*held.shape, *held.stride()]
    return held.device.type == "cpu" and all(type(n) is int for n in numbers)
