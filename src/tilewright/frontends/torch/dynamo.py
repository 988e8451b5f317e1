"""`torch.compile` with this compiler: graphs of AOTAutograd, with frozen weights.

PyTorch captures a function, removes in-place changes and views, and passes on ATen graphs. A graph
is compiled at its first call, when its parameters are known. They become constants, which are
packed, as long as they are the same tensors with the same contents.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from ctypes import Array, c_char
from typing import Any, Final

from tilewright.base.errors import TilewrightWarning, UnsupportedError
from tilewright.frontends.torch.aten.decompositions import decompositions
from tilewright.frontends.torch.aten.importer import (
    FxSource,
    ImportSettings,
    RuleRefused,
    import_graph,
    missing,
    unsupported,
)
from tilewright.frontends.torch.aten.rules import name_of
from tilewright.frontends.torch.checks import checks_last, passed, token_count
from tilewright.frontends.torch.complex_edges import real_edges
from tilewright.frontends.torch.drawn import check_drawn, draws_first
from tilewright.frontends.torch.parts import (
    DRAWN_BY_TORCH,
    FROM_STATE,
    Parts,
    by_nodes,
    is_ordered,
    left_to_torch,
)
from tilewright.frontends.torch.shared import are_said, distinct
from tilewright.frontends.torch.sized import is_open, numbers_of, open_places, sized
from tilewright.graph.nodes import Graph

# The executable form of a Graph: a function of its inputs in order, returning one or more arrays.
Compile = Callable[[Graph], Callable[..., Any]]
_KEPT: Final = 8  # most sets of weights that a graph is compiled for
_SIZES: Final = 64  # most sets of extents that there are graphs for
_SAMPLED: Final = 64  # bytes at each end of a weight that are compared at each call


def backend(
    module: Any,
    example_inputs: Sequence[Any],
    compile: Compile,
    settings: ImportSettings,
) -> Callable[..., Any]:
    """The function that runs a graph captured by `torch.compile`.

    A backward pass computes again what costs less than to save, and is given each weight once.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def trained(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """For forward passes with a backward pass, and for these: weights change at each step."""
        boxed: Callable[..., Any] = make_boxed_func(
            _function(graph, (), compile, settings)
        )
        return boxed

    def used(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        captured = _function(graph, _static(graph), compile, settings)
        boxed: Callable[..., Any] = make_boxed_func(captured)
        return boxed

    prepare = aot_autograd(
        fw_compiler=trained,
        bw_compiler=trained,
        inference_compiler=used,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
    )
    with config.patch(unlift_effect_tokens=True):  # tokens are no inputs of the graphs
        run: Callable[..., Any] = prepare(module, list(example_inputs))
    return run


def _function(
    module: Any,
    frozen: Sequence[int],
    compile: Compile,
    settings: ImportSettings,
) -> Callable[..., Any]:
    """The function that runs a graph, apart from single operators that PyTorch runs, and views.

    If one has no rule, a warning names it.
    """

    def make(module: Any, frozen: Sequence[int]) -> CapturedGraph:
        return CapturedGraph(module, frozen, compile, settings)

    left = {name_of(n.target) for n in left_to_torch(module)}
    if not left and (is_ordered(module) or are_said(module)):
        return make(module, frozen)
    unknown = left.difference(DRAWN_BY_TORCH, FROM_STATE)
    absent = {name: at for name, at in missing(module).items() if name in unknown}
    if absent:
        count = len(module.graph.nodes)
        warnings.warn(
            f"PyTorch runs a graph of {count} nodes in part: {unsupported(absent)}",
            TilewrightWarning,
            stacklevel=2,
        )
    return Parts(module, frozen, make)


def _static(graph: Any) -> Sequence[int]:
    """The inputs of the graph that are parameters and buffers of a module, and stay the same.

    A buffer that the graph itself changes, such as a cache of keys, differs at each call.
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    about = None if context is None else context.fw_metadata
    if about is None:
        return ()
    tokens = token_count(graph)  # PyTorch counts them, too
    static = [n - tokens for n in about.static_input_indices]
    return [n for n in static if not about.input_info[n].mutates_data]


class CapturedGraph:
    """One graph as a function of tensors. frozen: the positions of inputs that stay the same.

    If a rule rejects extents that are open, there is a graph for each of their values. If a rule
    rejects a use, or an operator of a branch has none, PyTorch runs the graph, with a warning that
    names the operator.
    """

    def __init__(
        self,
        module: Any,
        frozen: Sequence[int],
        compile: Compile,
        settings: ImportSettings,
    ) -> None:
        self._whole = module
        self._given = frozen
        drawn, self._draws = draws_first(module)
        checked, self._checks = checks_last(drawn)
        self._edges = real_edges(checked)
        self._results = distinct(self._edges.module)
        self._module = self._results.module
        places = [n for n in self._module.graph.nodes if n.op == "placeholder"]
        self._names = [n.name for n in places]
        inputs = set(range(len(places))).difference(self._edges.inputs)
        self._frozen = [n for n in frozen if n in inputs]
        held = [n.meta.get("val") for n in places]
        self._numbers = _numbers(held)
        self._compile = compile
        self._settings = settings
        self._made: list[tuple[list[State], list[Any], Callable[..., Any]]] = []
        self._open = open_places(module)
        self._sized: dict[tuple[int, ...], CapturedGraph] | None = None
        self._lock = threading.Lock()  # of these: threads may call at once

    def __call__(self, *args: Any) -> Any:
        if self._sized is not None:
            return self._of_size(self._sized, args)(*args)
        given = [args[n] for n in self._frozen]
        numbers = [args[n] for n in self._numbers]
        for known, same, run in self._made:
            if numbers == same and all(map(_unchanged, known, given)):
                return run(*args)
        held = list(map(_state, given))
        run = self._built(args)
        self._made = [(held, numbers, run), *self._made[: _KEPT - 1]]
        return run(*args)

    def _built(self, args: Sequence[Any]) -> Callable[..., Any]:
        try:
            run = self._compiled(args)
            if not self._draws:
                return run
            return lambda *given: run(*given, *self._drawn(given))
        except UnsupportedError as error:
            if self._open and not any(map(_of_tensors, missing(self._module))):
                self._sized = {}
                return self
            warnings.warn(
                f"PyTorch runs a graph of {len(self._whole.graph.nodes)} nodes: {error}",
                TilewrightWarning,
                stacklevel=2,
            )
            return by_nodes(self._whole)

    def _drawn(self, args: Sequence[Any]) -> list[Any]:
        """The random numbers of a call."""
        numbers = numbers_of(self._open, args)
        return [draw(numbers) for draw in self._draws]

    def _of_size(
        self, graphs: dict[tuple[int, ...], CapturedGraph], args: Sequence[Any]
    ) -> CapturedGraph:
        """The graph for the extents of a call, which becomes the last one to be dropped."""
        numbers = numbers_of(self._open, args)
        key = tuple(numbers.values())
        with self._lock:
            found = graphs.pop(key, None)
            if found is None:
                module = sized(self._whole, numbers)
                given = self._given, self._compile, self._settings
                found = CapturedGraph(module, *given)
                while len(graphs) >= _SIZES:
                    del graphs[next(iter(graphs))]
            graphs[key] = found
        return found

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        absent = missing(self._module)
        if absent:
            raise unsupported(absent)
        check_drawn(self._module)
        frozen = [n for n in self._frozen if not args[n].is_inference()]
        held = {self._names[n]: (args[n], self._names[n]) for n in frozen}
        try:
            numbers = {self._names[n]: args[n] for n in self._numbers}
            graph = import_graph(FxSource(self._module, held, numbers), self._settings)
        except RuleRefused as use:
            raise use.error from None
        names = [v.name for v in graph.inputs]
        places = [self._names.index(name) for name in names]
        results = self._results
        if not results.whole:
            return self._outside(lambda *given: results.of((), given))
        run = self._compile(graph)
        orders = [_order(held) for held in results.whole]

        def call(*args: Any) -> tuple[Any, ...]:
            found = _tensors(run(*[args[n] for n in places]))
            parts = list(map(_as_described, found, results.whole, orders))
            return results.of(parts, args)

        return self._outside(call)

    def _outside(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the graph's own inputs, from one that does what the changed graph does."""
        whole = self._edges.around(run)
        return lambda *args: passed(self._checks, whole(*args))


def _of_tensors(operator: str) -> bool:
    """Whether it is not arithmetic on numbers, which a graph for given extents does not have."""
    return operator.partition(".")[0] not in ("math", "operator", "torch")


# A tensor that stays the same, PyTorch's count of its changes, the address of its contents, and
# places in memory with what they held. Tensors made in inference mode, which are
# None, do not count their changes: they are not constants.
State = tuple[Any, int, int, Sequence[Array[c_char]], Sequence[bytes]]


def _state(held: Any) -> State:
    if held.is_inference():
        return None, 0, 0, (), []
    places = _sampled(held)
    return held, held._version, held.data_ptr(), places, _read(places)


def _sampled(held: Any) -> Sequence[Array[c_char]]:
    """The first and the last elements in memory, up to 64 bytes each, which are not kept alive.

    None of a tensor with gaps, which may hold what others write. Writes through `.data` and NumPy's
    views do not count as changes; most of them change these.
    """
    size = held.nbytes
    if not size or not _is_dense(held) or held.device.type != "cpu":
        return ()
    part = min(size, _SAMPLED)
    kind = c_char * part
    first = held.data_ptr()
    starts = dict.fromkeys((first, first + size - part))
    return [kind.from_address(start) for start in starts]


def _is_dense(held: Any) -> bool:
    """Whether a tensor with elements has each place of its memory once, in any order of axes."""
    place = 1
    axes = zip(held.stride(), held.shape, strict=True)
    for step, extent in sorted(axis for axis in axes if axis[1] != 1):
        if step != place:
            return False
        place *= extent
    return True


def _read(places: Sequence[Array[c_char]]) -> Sequence[bytes]:
    return [place.raw for place in places]


def _unchanged(known: State, given: Any) -> bool:
    """Whether it is the same tensor with the same contents. Its memory is read if it is."""
    held, version, address, places, kept = known
    if held is None:
        return bool(given.is_inference())
    if held is not given or given._version != version or given.data_ptr() != address:
        return False
    return _read(places) == kept


def _order(held: Any) -> list[int] | None:
    """The axes of a result from the outermost in memory; None if they are in order.

    PyTorch makes views of results with the strides that it predicted. Expanded axes, which have
    none, are the outermost: pairs of complex numbers stay together.
    """
    if not hasattr(held, "stride"):
        return None
    strides = [n if type(n) is int else n.node.hint for n in held.stride()]
    if any(n is None for n in strides):
        return None
    axes = [a for a, n in enumerate(held.shape) if type(n) is not int or n != 1]
    places = [-n or -math.inf for n in strides]
    if axes == sorted(axes, key=places.__getitem__):
        return None
    return sorted(range(len(strides)), key=places.__getitem__)


def _as_described(found: Any, about: Any, order: list[int] | None) -> Any:
    """A number, or a tensor with its axes in this order in memory.

    One without elements is made by PyTorch, so that `out=` may give it others.
    """
    if not hasattr(about, "shape"):
        return found.item()
    if not found.numel():
        return found.new_empty(found.shape)
    if order is None:
        return found
    back = sorted(range(len(order)), key=order.__getitem__)
    return found.permute(order).contiguous().permute(back)


def _numbers(held: Sequence[Any]) -> list[int]:
    """The positions of numbers that are not extents of tensors: a graph is compiled per value."""
    extents = {str(n) for v in held for n in getattr(v, "shape", ()) if is_open(n)}
    return [
        n
        for n, v in enumerate(held)
        if v is not None and not hasattr(v, "shape") and str(v) not in extents
    ]


def _tensors(found: Any) -> Sequence[Any]:
    """Results as tensors, without copies; as NumPy arrays if no input was a tensor."""
    import torch

    if isinstance(found, tuple):
        parts = found
    else:
        parts = (found,)
    return [p if isinstance(p, torch.Tensor) else torch.from_numpy(p) for p in parts]
