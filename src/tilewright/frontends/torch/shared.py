"""Results of a captured graph that share memory: one is computed, and the others are views of it.

PyTorch leaves views of an intermediate tensor in the graph if several results share it; a change of
one result in place then shows in the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.frontends.torch.sized import (
    Numbers,
    Place,
    known,
    numbers_of,
    open_places,
)


@dataclass(frozen=True)
class Results:
    """module: a graph whose results are distinct tensors. whole: PyTorch's description of these.

    places: for each result of the original graph its position in `whole`, or None if there is none.
    views: for each one its description, if it is a view; else None. open: where the graph's inputs
    have open extents.
    """

    module: Any
    whole: Sequence[Any]
    places: Sequence[int | None]
    views: Sequence[Any]
    open: Sequence[Place]

    def of(self, found: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
        """The original graph's results from those of `module`. args: of the call."""
        pairs = list(zip(self.places, self.views, strict=True))
        viewed = {place for place, view in pairs if view is not None}
        numbers = numbers_of(self.open, args) if viewed else {}
        parts = [
            _in_memory(part, self.whole[n], numbers) if n in viewed else part
            for n, part in enumerate(found)
        ]
        return tuple(
            None if place is None else _view(parts[place], view, numbers)
            for place, view in pairs
        )


def distinct(module: Any) -> Results:
    """The graph with each tensor that several results share as one result."""
    (output,) = [n for n in module.graph.nodes if n.op == "output"]
    given = list(output.args[0])
    roots = [n if n is None else _root(n) for n in given]
    whole = []
    for node, root in zip(given, roots, strict=True):
        shared = roots.count(root) > 1 and root.op != "placeholder" if root else False
        whole.append(root if shared else node)
    kept = list(dict.fromkeys(n for n in whole if n is not None))
    places = [None if n is None else kept.index(n) for n in whole]
    views = [
        node.meta["val"] if node is not held else None
        for node, held in zip(given, whole, strict=True)
    ]
    about = [n.meta.get("val") for n in kept]
    if kept == given:
        return Results(module, about, places, views, open_places(module))
    import torch

    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    graph.graph_copy(module.graph, copies)
    graph.output(tuple(copies[n] for n in kept))
    made = torch.fx.GraphModule(module, graph)
    return Results(made, about, places, views, open_places(module))


def _root(node: Any) -> Any:
    """The node that made the memory of a result."""
    source = _viewed(node)
    while source is not None:
        node, source = source, _viewed(source)
    return node


def _viewed(node: Any) -> Any:
    """What a node gives another view of, of the same element type; None if it gives none.

    Operators such as `split` give several views; a node takes one of them.
    """
    made = node.args[0] if node.target is getitem else node
    target = made.target
    if not getattr(target, "is_view", False) or target._schema.is_mutable:
        return None
    source = made.args[0]
    held = [getattr(n.meta.get("val"), "dtype", None) for n in (node, source)]
    return source if held[0] is not None and held[0] == held[1] else None


def _view(whole: Any, about: Any, numbers: Numbers) -> Any:
    """The view of a tensor that PyTorch described; the tensor itself without a description."""
    if about is None:
        return whole
    size, stride = (_known(n, numbers) for n in (about.shape, about.stride()))
    (offset,) = _known([about.storage_offset()], numbers)
    return whole.as_strided(size, stride, whole.storage_offset() + offset)


def _in_memory(part: Any, about: Any, numbers: Numbers) -> Any:
    """A tensor in memory as PyTorch described it, so that views have the strides it predicted."""
    stride = _known(about.stride(), numbers)
    if list(part.stride()) == stride:
        return part
    return part.new_empty_strided(part.shape, stride).copy_(part)


def _known(extents: Sequence[Any], numbers: Numbers) -> list[int]:
    return [int(known(n, numbers)) for n in extents]
