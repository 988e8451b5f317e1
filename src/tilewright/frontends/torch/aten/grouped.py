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

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tilewright.frontends.torch.aten.rules import GETITEM, name_of

# Products of rows and a matrix, and whether the matrix is transposed first.
_PRODUCTS: Final = {
    "aten.linear.default": True,
    "aten.matmul.default": False,
    "aten.mm.default": False,
}
_SPLITS: Final = ("aten.split_with_sizes.default", "aten.split.sizes")


class _Part(NamedTuple):
    """A product of one part. split: the node that cuts; weights: the node of all matrices."""

    split: Any
    weights: Any
    turned: bool


def with_grouped_products(module: Any) -> Any:
    """The same program with grouped products; the module itself if it has none."""
    import torch

    groups = {}
    for n in module.graph.nodes:
        found = _group(n)
        if found is not None:
            groups[n] = found
    if not groups:
        return module
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    for n in module.graph.nodes:
        if n in groups:
            copies[n] = _product(graph, n, groups[n], copies)
        else:
            copies[n] = graph.node_copy(n, copies.__getitem__)
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(module, graph)


def _group(node: Any) -> _Part | None:
    """What all parts of a concatenation have in common, if it is a grouped product."""
    if node.op != "call_function" or name_of(node.target) != "aten.cat.default":
        return None
    parts = [_part(n, i) for i, n in enumerate(node.args[0])]
    first = parts[0] if parts else None
    if first is None or any(p != first for p in parts) or _axis(node, 1, 2):
        return None
    sizes = first.split.args[1]
    shape = first.weights.meta["val"].shape
    rank = first.split.args[0].meta["val"].dim()
    whole = len(parts) == len(sizes) == shape[0]
    known = all(type(n) is int for n in sizes)
    if rank != 2 or len(shape) != 3 or not whole or known:
        return None
    return first


def _part(node: Any, i: int) -> _Part | None:
    """The product of part i of some tensor with matrix i."""
    turned = _PRODUCTS.get(name_of(node.target))
    if turned is None or node.kwargs or any(a is None for a in node.args[:2]):
        return None
    x, w, *bias = node.args
    own = name_of(x.target) == GETITEM and x.args[1] == i
    chosen = name_of(w.target) == "aten.select.int" and tuple(w.args[1:]) == (0, i)
    if not own or not chosen or bias not in ([], [None]):
        return None
    split = x.args[0]
    if name_of(split.target) not in _SPLITS or _axis(split, 2, 2):
        return None
    return _Part(split, w.args[0], turned)


def _axis(node: Any, place: int, rank: int) -> int:
    """The argument `dim`, the first axis by default, counted from the front."""
    given = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    return int(given) % rank


def _product(graph: Any, node: Any, part: _Part, copies: Mapping[Any, Any]) -> Any:
    """The nodes of the grouped product that replace a concatenation."""
    import torch

    aten = torch.ops.aten

    def call(target: Any, *args: Any, **kwargs: Any) -> Any:
        made = graph.call_function(target, args, kwargs)
        made.meta = dict(node.meta)
        return made

    def described(held: Any, *args: Any, **kwargs: Any) -> Any:
        """A node with PyTorch's description of its result, which `held` makes."""
        made = call(*args, **kwargs)
        made.meta["val"] = held
        return made

    x = part.split.args[0]
    weights = part.weights.meta["val"]
    w = copies[part.weights]
    if part.turned:
        w = described(weights.mT, aten.transpose.int, w, 1, 2)
    sizes = _sizes(part.split.args[1], copies)
    with weights.fake_mode:
        size = torch.empty((), dtype=torch.int64)
        counts = torch.empty(len(sizes), dtype=torch.int64)
    long = {"dtype": torch.int64}
    each = [described(size, aten.scalar_tensor.default, n, **long) for n in sizes]
    listed = described(counts, aten.stack.default, each)
    ends = described(counts, aten.cumsum.default, listed, 0)
    return call(aten._grouped_mm.default, copies[x], w, ends)


def _sizes(given: Sequence[Any], copies: Mapping[Any, Any]) -> list[Any]:
    return [n if type(n) is int else copies[n] for n in given]
