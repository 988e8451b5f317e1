"""A captured graph in parts: those that are compiled, and single operators that PyTorch runs.

The latter have no rule, or draw random numbers by PyTorch's own methods from a tensor of the graph,
as `poisson` does. Parts run in the order of the graph, in which numbers are drawn. Results that are
views of other values are made by PyTorch at the end: they share memory as they do there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.frontends.torch.aten.importer import has_rule
from tilewright.frontends.torch.aten.rules import GETITEM, name_of
from tilewright.frontends.torch.shared import views_of_results

Run = Callable[..., Any]
# Makes a part run. The sequence: the positions of its inputs that stay the same.
Make = Callable[[Any, Sequence[int]], Run]

# The methods of PyTorch reject numbers, so that how many they draw depends on the tensor.
DRAWN_BY_TORCH: Final = (
    "aten.poisson.default",
    "aten.binomial.default",
    "aten._standard_gamma.default",
    "aten._sample_dirichlet.default",
)
# Operators that run another one, their argument at this place, with a state of PyTorch's generator:
# a dropout that a checkpoint repeats.
FROM_STATE: Final = {
    "torch.ops.higher_order.run_and_save_rng_state": 0,
    "torch.ops.higher_order.run_with_rng_state": 1,
}
# Nodes that order others by tokens, which are no tensors.
_ORDERED: Final = ("torch.ops.higher_order.with_effects", "prims._make_token.default")


def left_to_torch(module: Any) -> list[Any]:
    """The nodes that PyTorch runs in a graph whose other nodes are compiled.

    None in a graph that is ordered by tokens. What changes tensors in place is not one.
    """
    if is_ordered(module):
        return []
    return [n for n in _called(module) if _is_left(n.target)]


def by_nodes(module: Any) -> Run:
    """A graph as a function of tensors that PyTorch runs node by node.

    Not by the Python text of the graph, in which complex numbers with NaN have no name.
    """
    import torch

    def run(*args: Any) -> Any:
        interpreter = torch.fx.Interpreter(module)
        return interpreter.run(*args)

    return run


def is_ordered(module: Any) -> bool:
    """Whether tokens order the nodes of a graph."""
    return any(name_of(n.target) in _ORDERED for n in _called(module))


def _called(module: Any) -> list[Any]:
    return [n for n in module.graph.nodes if n.op == "call_function"]


def _is_left(target: Any) -> bool:
    if name_of(target) in FROM_STATE:
        return True
    schema = getattr(target, "_schema", None)
    if schema is None or schema.is_mutable:  # not an operator of tensors
        return False
    return name_of(target) in DRAWN_BY_TORCH or not has_rule(target)


@dataclass(frozen=True)
class _Part:
    """run: a function of the values of `takes`, with a value for each of `gives`.

    ends: what no later part takes. All are nodes of the whole graph.
    """

    run: Run
    takes: Sequence[Any]
    gives: Sequence[Any]
    ends: Sequence[Any]


class Parts:
    """A graph as a function of tensors. frozen: the positions of inputs that stay the same."""

    def __init__(self, module: Any, frozen: Sequence[int], make: Make) -> None:
        _describe_drawn(module)
        nodes = list(module.graph.nodes)
        self._inputs = [n for n in nodes if n.op == "placeholder"]
        self._module = module
        self._make = make
        self._frozen = {self._inputs[n] for n in frozen if n < len(self._inputs)}
        (output,) = [n for n in nodes if n.op == "output"]
        self._results = output.args[0]
        self._views = views_of_results(module)
        groups = list(_groups(module, _only_results(self._views)))
        last = {n: k for k, group in enumerate(groups) for n in _taken(group)}
        ends = [*_taken(self._views), *output.all_input_nodes]
        last |= dict.fromkeys(set(ends).difference(self._views), len(groups))
        self._parts = [self._part(k, g, last) for k, g in enumerate(groups)]

    def __call__(self, *args: Any) -> Any:
        held = dict(zip(self._inputs, args, strict=True))
        for part in self._parts:
            given = [held[n] for n in part.takes]
            for node in part.ends:
                del held[node]
            held.update(zip(part.gives, part.run(*given), strict=True))
        self._apply(self._views, held)
        return tuple(self._valued(self._results, held))

    def _apply(self, nodes: Sequence[Any], held: dict[Any, Any]) -> None:
        """Run nodes by PyTorch. held: the values of others, to which theirs are added."""
        for node in nodes:
            args, kwargs = self._valued((node.args, node.kwargs), held)
            held[node] = node.target(*args, **kwargs)

    def _valued(self, arguments: Any, held: Mapping[Any, Any]) -> Any:
        """Arguments with values in place of nodes."""
        import torch

        def value(node: Any) -> Any:
            if node.op == "get_attr":
                return attrgetter(node.target)(self._module)
            return held[node]

        return torch.fx.node.map_arg(arguments, value)

    def _part(self, place: int, group: Sequence[Any], last: Mapping[Any, int]) -> _Part:
        """The group of nodes at a place; `last` has the place where each node is last taken."""
        takes = _taken(group)
        gives = [n for n in group if last.get(n, -1) > place]
        ends = [n for n in takes if last[n] == place]
        how = self._left if _is_left(group[0].target) else self._compiled
        return _Part(how(group, takes, gives), takes, gives, ends)

    def _left(
        self,
        group: Sequence[Any],
        takes: Sequence[Any],
        gives: Sequence[Any],
    ) -> Run:
        def run(*given: Any) -> Sequence[Any]:
            held = dict(zip(takes, given, strict=True))
            self._apply(group, held)
            return [held[n] for n in gives]

        return run

    def _compiled(
        self,
        group: Sequence[Any],
        takes: Sequence[Any],
        gives: Sequence[Any],
    ) -> Run:
        import torch

        graph = torch.fx.Graph()
        copies: dict[Any, Any] = {}
        for node in takes:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)

        def copied(node: Any) -> Any:
            if node not in copies:  # an attribute of the module
                copies[node] = graph.node_copy(node)
            return copies[node]

        for node in group:
            copies[node] = graph.node_copy(node, copied)
        graph.output(tuple(copies[n] for n in gives))
        module = torch.fx.GraphModule(self._module, graph)
        frozen = [n for n, node in enumerate(takes) if node in self._frozen]
        return self._make(module, frozen)


def _describe_drawn(module: Any) -> None:
    """Describe the tensors that are drawn from a state, which PyTorch leaves out."""
    import torch
    from torch._guards import detect_fake_mode

    for node in _called(module):
        place = FROM_STATE.get(name_of(node.target))
        if place is None:
            continue
        given = (node.args[place:], dict(node.kwargs))
        (draw, *args), named = torch.fx.node.map_arg(given, lambda n: n.meta["val"])
        held = [n.meta.get("val") for n in module.graph.nodes]
        mode = detect_fake_mode(held)
        with torch.utils._python_dispatch._disable_current_modes(), mode:
            found = draw(*args, **named)
        if place:
            node.meta["val"] = found
        for part in _results_of(node) if not place else ():
            if part.args[1] == 1:
                part.meta["val"] = found


def _only_results(views: Sequence[Any]) -> set[Any]:
    """Those of the views that only the output and others of these take."""
    found: set[Any] = set()
    for node in reversed(views):
        users = [n for n in node.users if n.op != "output"]
        if found.issuperset(users):
            found.add(node)
    return found


def _groups(module: Any, without: set[Any]) -> Iterator[list[Any]]:
    """The nodes of each part, in order, apart from some.

    A result of several is taken apart where it is made.
    """
    group: list[Any] = []
    for node in module.graph.nodes:
        if node.op != "call_function" or _takes_apart(node) or node in without:
            continue
        whole = [node, *_results_of(node)]
        if _is_left(node.target):
            if group:
                yield group
            yield whole
            group = []
        else:
            group += whole
    if group:
        yield group


def _takes_apart(node: Any) -> bool:
    return name_of(node.target) == GETITEM


def _results_of(node: Any) -> list[Any]:
    """The nodes that take a result of several apart."""
    return [n for n in node.users if n.op == "call_function" and _takes_apart(n)]


def _taken(group: Sequence[Any]) -> list[Any]:
    """What a group takes of others, attributes of the module aside."""
    own = set(group)
    inputs = [n for node in group for n in node.all_input_nodes]
    return [n for n in dict.fromkeys(inputs) if n not in own and n.op != "get_attr"]
