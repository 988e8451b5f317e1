"""Products of parts of a tensor, each with a matrix of its own, as one grouped product.

    parts = x.split(counts.tolist())
    torch.cat([linear(parts[i], w[i]) for i in range(len(w))])

is `torch._grouped_mm(x, w.mT, offs=counts.cumsum(0))`, which needs no tensor of an extent that is
known only when it runs: mixtures of experts such as JetMoe and GraniteMoe are written like this.

Requires, of each such concatenation:

- it is along the rows, and takes all parts of one matrix, in order, and nothing else;
- the matrix is cut along its rows, and one of the sizes is known only at run time;
- part i is multiplied by matrix i of one tensor, which has as many matrices as there are parts;
- nothing is added to a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tilewright.frontends.torch.aten.rules import GETITEM, name_of

# Products of rows and a matrix, and whether the matrix is transposed first.
_PRODUCTS: Final = {
    "aten.linear.default": True,
    "aten.matmul.default": False,
    "aten.mm.default": False,
}
_SPLITS: Final = (
    "aten.split_with_sizes.default",
    "aten.split.sizes",
)
_CHOICE: Final = "aten.select.int"


class _Part(NamedTuple):
    """A product of one part. split: the node that cuts; weights: the node of all matrices."""

    split: Any
    weights: Any
    turned: bool


def with_grouped_products(module: Any) -> Any:
    """The same program with grouped products; the module itself if it has none."""
    import torch

    nodes = module.graph.nodes
    groups = {}
    for n in nodes:
        found = _group(n)
        if found is not None:
            groups[n] = found
    if not groups:
        return module
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    for n in nodes:
        if n in groups:
            copy = _product(
                graph,
                n,
                groups[n],
                copies,
            )
        else:
            copy = graph.node_copy(n, copies.__getitem__)
        copies[n] = copy
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(module, graph)


def _group(node: Any) -> _Part | None:
    """What all parts of a concatenation have in common, if it is a grouped product."""
    if node.op != "call_function" or name_of(node.target) != "aten.cat.default":
        return None
    joined = node.args[0]
    parts = [_part(n, i) for i, n in enumerate(joined)]
    if not parts or parts[0] is None:
        return None
    first = parts[0]
    if any(p != first for p in parts):
        return None
    if _axis(node, 1, 2):
        return None
    cut, sizes = first.split.args[:2]
    rank = cut.meta["val"].dim()
    shape = first.weights.meta["val"].shape
    whole = len(parts) == len(sizes) == shape[0]
    known = all(type(n) is int for n in sizes)
    if rank != 2 or len(shape) != 3:
        return None
    if known or not whole:
        return None
    return first


def _part(node: Any, i: int) -> _Part | None:
    """The product of part i of some tensor with matrix i."""
    name = name_of(node.target)
    turned = _PRODUCTS.get(name)
    if turned is None or node.kwargs:
        return None
    x, w, *bias = node.args
    if bias not in ([], [None]):
        return None
    if name_of(x.target) != GETITEM or name_of(w.target) != _CHOICE:
        return None
    split, place = x.args
    weights, *chosen = w.args
    if place != i or chosen != [0, i]:
        return None
    if name_of(split.target) not in _SPLITS:
        return None
    if _axis(split, 2, 2):
        return None
    return _Part(split, weights, turned)


def _axis(node: Any, place: int, rank: int) -> int:
    """The argument `dim`, the first axis by default, counted from the front."""
    if len(node.args) > place:
        given = node.args[place]
    else:
        given = node.kwargs.get("dim", 0)
    return int(given) % rank


def _product(
    graph: Any,
    node: Any,
    part: _Part,
    copies: Mapping[Any, Any],
) -> Any:
    """The nodes of the grouped product that replace a concatenation."""
    import torch

    aten = torch.ops.aten

    def call(held: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        """A node with PyTorch's description of its result."""
        made = graph.call_function(target, args, kwargs)
        made.meta = dict(node.meta)
        made.meta["val"] = held
        return made

    cut, sizes = part.split.args[:2]
    weights = part.weights.meta["val"]
    with weights.fake_mode:
        size = torch.empty((), dtype=torch.int64)
        counts = torch.empty(len(sizes), dtype=torch.int64)
    each = []
    for n in sizes:
        number = copies.get(n, n)
        scalar = call(
            size,
            aten.scalar_tensor.default,
            number,
            dtype=torch.int64,
        )
        each.append(scalar)
    listed = call(counts, aten.stack.default, each)
    ends = call(counts, aten.cumsum.default, listed, 0)
    w = copies[part.weights]
    if part.turned:
        w = call(weights.mT, aten.transpose.int, w, 1, 2)
    return call(
        node.meta["val"],
        aten._grouped_mm.default,
        copies[cut],
        w,
        ends,
    )
