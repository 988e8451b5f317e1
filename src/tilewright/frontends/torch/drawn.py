"""Random numbers of a captured graph, drawn by PyTorch before the rest runs.

Dropout in training is `rand_like(x) > p`. Random numbers depend only on shapes and on constants, so
a node that draws becomes an input of the graph; its numbers come from PyTorch's generator, in the
graph's order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tilewright.base.errors import UnsupportedError
from tilewright.frontends.torch.aten.importer import nodes
from tilewright.frontends.torch.aten.operators.random import is_random
from tilewright.frontends.torch.aten.rules import name_of
from tilewright.frontends.torch.sized import Numbers, is_open, known, open_places

# Draws for a call, by the numbers of its open extents.
Draw = Callable[[Numbers], Any]


def draws_first(module: Any) -> tuple[Any, Sequence[Draw]]:
    """A graph whose last inputs are its random numbers, and a function that draws them per call.

    A graph that draws nothing is unchanged; a draw in a shape that its inputs do not say stays.
    """
    import torch

    said = {expression for _, _, expression in open_places(module)}
    draws_of = {n: _draw(n, said) for n in module.graph.nodes}
    found = [n for n, draw in draws_of.items() if draw is not None]
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
        draws.append(draws_of[node])
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


def _draw(node: Any, said: Collection[Any]) -> Draw | None:
    """A function that draws for a node; None if it does not draw, or in an unknown shape.

    said: the open extents, as symbols, that the graph's inputs have. Of its tensors, an operator
    that draws reads shapes and strides only. A number that the graph computes is unknown before it
    runs.
    """
    import torch

    if node.op != "call_function" or not is_random(name_of(node.target)):
        return None
    like = {n: n.meta["val"] for n in node.all_input_nodes}
    if not hasattr(node.meta["val"], "stride"):
        return None
    if not all(_is_said(held, said) for held in (node.meta["val"], *like.values())):
        return None

    def draw(numbers: Numbers) -> Any:
        def numbered(given: Sequence[Any]) -> list[int]:
            return [known(n, numbers) for n in given]

        made = {}
        for n, held in like.items():
            if hasattr(held, "stride"):
                size = numbered(held.shape)
                stride = numbered(held.stride())
                made[n] = torch.empty_strided(size, stride, dtype=held.dtype)
            else:
                (made[n],) = numbered([held])
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), made.__getitem__)
        return node.target(*args, **kwargs)

    return draw


def _is_said(held: Any, said: Collection[Any]) -> bool:
    """Whether it is a number, or a tensor of a processor's memory, of extents that are known."""
    if not hasattr(held, "stride"):
        numbers = [held]
    elif held.device.type == "cpu":
        numbers = [*held.shape, *held.stride()]
    else:
        return False
    return all(
        n.node.expr.free_symbols.issubset(said) if is_open(n) else type(n) is int
        for n in numbers
    )
