"""Results of a captured graph that share memory: one is computed, and the others are views of it.

PyTorch leaves views of an intermediate tensor in the graph if several results share it; a change of
one result in place then shows in the others. Results that are inputs or views of them are not
computed: PyTorch makes the caller's views of the input by their strides and offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.frontends.torch.sized import (
    Numbers,
    Place,
    is_open,
    known,
    numbers_of,
    open_places,
)


@dataclass(frozen=True)
class Results:
    """module: a graph whose results are distinct tensors. whole: PyTorch's description of these.

    places: for each result of the original graph its position in `whole`, or None if there is none.
    inputs: for each one the position of the input that it is, or is a view of; else None. views:
    for each one what it is of that tensor, if it is a view; else None. open: where the graph's
    inputs have open extents.
    """

    module: Any
    whole: Sequence[Any]
    places: Sequence[int | None]
    inputs: Sequence[int | None]
    views: Sequence[ViewOf | None]
    open: Sequence[Place]

    def of(self, found: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
        """The original graph's results from those of `module`. args: of the call."""
        pairs = list(zip(self.places, self.inputs, self.views, strict=True))
        viewed = {place for place, _, view in pairs if view is not None}
        numbers = numbers_of(self.open, args) if viewed else {}
        parts = [
            _in_memory(part, self.whole[n], numbers) if n in viewed else part
            for n, part in enumerate(found)
        ]
        results: list[Any] = []
        for place, given, view in pairs:
            if given is not None:
                whole = args[given]
            else:
                whole = None if place is None else parts[place]
            results.append(whole if view is None else view.of(whole, numbers))
        return tuple(results)


@dataclass(frozen=True)
class ViewOf:
    """A view of a tensor. start: from the tensor's first element, in elements. May be symbols."""

    size: Sequence[Any]
    stride: Sequence[Any]
    start: Any

    @staticmethod
    def between(view: Any, whole: Any) -> ViewOf:
        """By PyTorch's descriptions."""
        start = view.storage_offset() - whole.storage_offset()
        return ViewOf(list(view.shape), list(view.stride()), start)

    def says(self, numbers: Numbers) -> bool:
        """Whether the expressions in `numbers` are enough to make it."""
        open_ = [n for n in (*self.size, *self.stride, self.start) if is_open(n)]
        return all(_is_made(n.node.expr, numbers) for n in open_)

    def of(self, whole: Any, numbers: Numbers) -> Any:
        """The view of a tensor."""
        size = _known(self.size, numbers)
        stride = _known(self.stride, numbers)
        (start,) = _known([self.start], numbers)
        first = whole.storage_offset() + start
        return whole.as_strided(size, stride, first)


def distinct(module: Any) -> Results:
    """The graph with each tensor that several results share as one result."""
    import torch

    (output,) = [n for n in module.graph.nodes if n.op == "output"]
    given = list(output.args[0])
    placed = [n for n in module.graph.nodes if n.op == "placeholder"]
    places = open_places(module)
    roots: list[Any] = [n if n is None else _root(n) for n in given]
    views = [
        None if n is root else ViewOf.between(n.meta["val"], root.meta["val"])
        for n, root in zip(given, roots, strict=True)
    ]
    symbols = {expression: 0 for _, _, expression in places}
    said = [v is None or v.says(symbols) for v in views]
    inputs = [
        placed.index(root) if root in placed and is_said else None
        for root, is_said in zip(roots, said, strict=True)
    ]
    whole = []
    for n, (node, root, held) in enumerate(zip(given, roots, inputs, strict=True)):
        made = node if held is None else None
        alone = roots.count(root) == 1 or root in placed or not said[n]
        if made is not None and alone:
            views[n] = None  # it is computed itself
        elif made is not None:
            made = root
        whole.append(made)
    kept = list(dict.fromkeys(n for n in whole if n is not None))
    about = [n.meta.get("val") for n in kept]
    where = [None if n is None else kept.index(n) for n in whole]
    if kept != given:
        graph = torch.fx.Graph()
        copies: dict[Any, Any] = {}
        graph.graph_copy(module.graph, copies)
        graph.output(tuple(copies[n] for n in kept))
        module = torch.fx.GraphModule(module, graph)
    return Results(module, about, where, inputs, views, places)


def views_of_results(module: Any) -> list[Any]:
    """The nodes that make views of others' memory that are results, in order."""
    (output,) = [n for n in module.graph.nodes if n.op == "output"]
    found = set()
    for node in output.args[0]:
        source = None if node is None else _viewed(node)
        while source is not None:
            found.add(node)
            if node.target is getitem:
                found.add(node.args[0])
            node = source
            source = _viewed(node)
    return [n for n in module.graph.nodes if n in found]


def are_said(module: Any) -> bool:
    """Whether the inputs' extents say those of all views that are results."""
    (output,) = [n for n in module.graph.nodes if n.op == "output"]
    symbols = {expression: 0 for _, _, expression in open_places(module)}
    for node in output.args[0]:
        if node is None:
            continue
        root = _root(node)
        if root is node:
            continue
        view = ViewOf.between(node.meta["val"], root.meta["val"])
        if not view.says(symbols):
            return False
    return True


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
    about = [n.meta.get("val") for n in (node, source)]
    if any(not hasattr(v, "dtype") or v.is_neg() or v.is_conj() for v in about):
        return None
    same = about[0].dtype == about[1].dtype
    return source if same else None


def _in_memory(part: Any, about: Any, numbers: Numbers) -> Any:
    """A tensor in memory as PyTorch described it, so that views have the strides it predicted."""
    stride = _known(about.stride(), numbers)
    if list(part.stride()) == stride:
        return part
    return part.new_empty_strided(part.shape, stride).copy_(part)


def _is_made(expression: Any, numbers: Numbers) -> bool:
    """Whether an expression, or each part of it that has symbols, is in `numbers`."""
    if expression in numbers or not expression.free_symbols:
        return True
    parts = expression.args
    return bool(parts) and all(_is_made(part, numbers) for part in parts)


def _known(extents: Sequence[Any], numbers: Numbers) -> list[int]:
    found = [known(n, numbers) for n in extents]
    if any(map(is_open, found)):
        raise TypeError(f"no input says what {found} is")
    return [int(n) for n in found]
