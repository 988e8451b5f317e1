"""Complex inputs and results of a captured graph as real ones with a last axis of two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass


@dataclass(frozen=True)
class RealEdges:
    """module: a graph without complex inputs and results.

    inputs, results: the positions of those that were complex.
    """

    module: Any
    inputs: Sequence[int]
    results: Sequence[int]

    def around(self, run: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
        """The original graph, from a function that does what `module` does."""
        if not self.inputs and not self.results:
            return run

        def call(*args: Any) -> tuple[Any, ...]:
            given = list(args)
            for n in self.inputs:
                given[n] = _pairs(given[n])
            found = list(run(*given))
            for n in self.results:
                found[n] = _complex(found[n])
            return tuple(found)

        return call


def real_edges(module: Any) -> RealEdges:
    """The graph with views as complex numbers of its inputs, and as real ones of its results.

    Its results are a tuple. A graph without complex edges is unchanged.
    """
    import torch

    nodes = list(module.graph.nodes)
    places = [n for n in nodes if n.op == "placeholder"]
    given = [p for p, n in enumerate(places) if _is_complex(n)]
    (output,) = [n for n in nodes if n.op == "output"]
    found = [p for p, n in enumerate(output.args[0]) if _is_complex(n)]
    if not given and not found:
        return RealEdges(module, (), ())
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    whole = graph.graph_copy(module.graph, copies)
    assert isinstance(whole, Sequence)
    results = list(whole)
    for place in given:
        node = copies[places[place]]
        with graph.inserting_after(node):
            viewed = graph.call_function(
                torch.ops.aten.view_as_complex.default, (node,)
            )
        node.replace_all_uses_with(viewed, lambda user, own=viewed: user is not own)
        results = [viewed if r is node else r for r in results]
        viewed.meta = node.meta
        node.meta = {**node.meta, "val": _pairs(node.meta["val"])}
    for place in found:
        node = results[place]
        viewed = graph.call_function(torch.ops.aten.view_as_real.default, (node,))
        viewed.meta = {**node.meta, "val": _pairs(node.meta["val"])}
        results[place] = viewed
    graph.output(tuple(results))
    return RealEdges(torch.fx.GraphModule(module, graph), given, found)


def _is_complex(node: Any) -> bool:
    about = getattr(node, "meta", {}).get("val")
    return bool(getattr(getattr(about, "dtype", None), "is_complex", False))


def _pairs(x: Any) -> Any:
    """A complex tensor as pairs; of one that PyTorch only marks as conjugate, a copy."""
    import torch

    return torch.view_as_real(x.resolve_conj())


def _complex(pairs: Any) -> Any:
    """Pairs as complex numbers. Of none, NumPy's strides are zeros, which PyTorch refuses."""
    import torch

    if not pairs.numel():
        pairs = pairs.clone(memory_format=torch.contiguous_format)
    return torch.view_as_complex(pairs)
