"""Groups that do the same at each position of open extents: a pixel of an image, or a tile of it.

A convolution over an image of unknown height and width computes each result from a window of the
image. Some positions, and the windows they read, make a group of fixed sizes: the windows are
gathered side by side, wherever in the image they are, or positions are a rectangle, whose windows
overlap in one part of the image.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.compute.guards import read_or_constant
from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.compute.transforms import environment
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Const,
    Expr,
    Extent,
    FloorDiv,
    Load,
    Mod,
    Select,
    Var,
    as_expr,
    const,
)
from tilewright.expr.reads import reads_memory
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, postorder

# What windows that are read as one have in common.
WindowKey = tuple[Computation, Buffer, Const | None, tuple[tuple[int | None, int], ...]]


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """An axis of a tensor as a position sees it: elements `stride * d + least`, and so many.

    dim: the number of the open dimension d; None: the same elements for all positions.
    """

    dim: int | None
    stride: int
    least: int
    length: int

    def is_inside(self, extent: Extent) -> bool:
        """Whether all positions are known to read elements of an axis of this extent."""
        if self.dim is not None or not isinstance(extent, int):
            return False
        return self.least >= 0 and self.least + self.length <= extent


@dataclass(frozen=True, eq=False, slots=True)
class PositionWindow:
    """The part of a tensor that each position of a Computation reads or writes.

    outside: what is read where an index leaves the tensor; None where that is never read.
    """

    tensor: Buffer
    axes: tuple[WindowAxis, ...]
    of: Computation
    outside: Const | None = None

    @property
    def leaves(self) -> bool:
        """Whether it may leave its tensor along an axis of which all positions see the same.

        It holds all that they name: also what conditions other than a guard keep them from reading.
        """
        axes = zip(self.axes, self.tensor.extents, strict=True)
        return any(a.dim is None and not a.is_inside(n) for a, n in axes)


@dataclass(frozen=True, eq=False, slots=True)
class Positions:
    """A group as a function of positions. dims: by Computation, its open dimensions.

    steps: by Computation, the points of a position along each of these. read: the window of each
    read of a tensor that is not shared by all positions; written: that of each visible result.
    boxes: what a rectangle of positions reads is one part of a tensor, in which windows overlap;
    else the windows are apart, of any positions.
    """

    computations: tuple[Computation, ...]
    dims: Mapping[Computation, tuple[Dim, ...]]
    steps: Mapping[Computation, int]
    read: Mapping[tuple[Computation, Node], PositionWindow]
    written: Mapping[Buffer, PositionWindow]
    locals: Mapping[Buffer, Computation]
    boxes: bool = False

    @property
    def last(self) -> Computation:
        """The Computation that defines the positions."""
        return next(c for c in reversed(self.computations) if c in self.dims)

    @property
    def counts(self) -> tuple[Expr, ...]:
        """The number of positions along each open dimension."""
        return _counts(self.dims[self.last], self.steps[self.last])

    @property
    def windows(self) -> tuple[PositionWindow, ...]:
        """What is gathered, each once."""
        return tuple(dict.fromkeys(self.read.values()))

    @property
    def share(self) -> bool:
        """Whether positions share what a reduction reads, such as weights.

        Poolings share nothing: one position has no more work than it gathers.
        """
        moved = {w.tensor for w in self.windows} | {*self.locals, *self.written}
        reductions = (c for c in self.dims if not c.is_map)
        return any(b not in moved for c in reductions for b in c.inputs)

    def shape(self, window: PositionWindow, some: Sequence[int]) -> tuple[int, ...]:
        """The extents of the gathered or written window of some positions along each dimension."""
        step = self.steps[window.of]
        places = [n * step for n in some]
        if window.tensor in self.written:
            return tuple(
                a.length if a.dim is None else places[a.dim] for a in window.axes
            )
        if self.boxes:
            return tuple(
                a.length if a.dim is None else (some[a.dim] - 1) * a.stride + a.length
                for a in window.axes
            )
        return (*places, *(a.length for a in window.axes if a.length > 1))

    def some(
        self, count: Sequence[int], parts: Mapping[PositionWindow, Buffer]
    ) -> list[Computation]:
        """The Computations for so many positions along each dimension, on the parts of windows."""
        made = {b: self._local(b, c, count) for b, c in self.locals.items()}
        made |= {b: parts[window] for b, window in self.written.items()}
        found = []
        for c in self.computations:
            if c not in self.dims:
                found.append(c)
                continue
            extents = {
                d: n * self.steps[c] for d, n in zip(self.dims[c], count, strict=True)
            }
            dims = tuple(replace(d, size=extents.get(d, d.size)) for d in c.dims)
            env = environment(dims)
            outputs = []
            for o in c.outputs:
                index = o.index
                if o.tensor in self.written:
                    index = self._within(o.index, self.written[o.tensor], c)
                value = simplify(self._moved(c, o.value, parts, made), env)
                outputs.append(Output(made.get(o.tensor, o.tensor), index, value))
            found.append(replace(c, dims=dims, outputs=tuple(outputs)))
        return found

    def _local(self, b: Buffer, c: Computation, count: Sequence[int]) -> Buffer:
        sizes = {
            d.var: n * self.steps[c] for d, n in zip(self.dims[c], count, strict=True)
        }
        pairs = zip(index_of(c, b), b.extents, strict=True)
        shape: list[Extent] = [
            sizes.get(i, e) if isinstance(i, Var) else e for i, e in pairs
        ]
        return Buffer(b.name, tuple(shape), b.dtype, b.scope)

    def _within(
        self, index: Sequence[Expr], window: PositionWindow, c: Computation
    ) -> tuple[Expr, ...]:
        """The index into the part of a window that is written."""
        dims = self.dims[c]
        pairs = zip(index, window.axes, strict=True)
        return tuple(
            simplify(i - const(a.least, INDEX), {})
            if a.dim is None
            else dims[a.dim].var
            for i, a in pairs
        )

    def _moved(
        self,
        c: Computation,
        root: Expr,
        parts: Mapping[PositionWindow, Buffer],
        made: Mapping[Buffer, Buffer],
    ) -> Expr:
        """A value with its reads on the parts of windows and on local tensors."""
        done: dict[Node, Any] = {}
        for node in postorder(root):
            new: Any = node.map(done.__getitem__)
            window = self.read.get((c, node))
            if window is not None:
                load = node.then if isinstance(node, Select) else node
                new = Load(parts[window], self._gathered(c, load.index, window))  # type: ignore[attr-defined]
            elif isinstance(node, Load) and node.buffer in made:
                index = new.index
                if node.buffer in self.written:
                    index = self._within(index, self.written[node.buffer], c)
                new = Load(made[node.buffer], index)
            done[node] = new
        found: Expr = done[root]
        return found

    def _gathered(
        self, c: Computation, index: Sequence[Expr], window: PositionWindow
    ) -> tuple[Expr, ...]:
        if self.boxes:
            pairs = zip(index, window.axes, strict=True)
            return tuple(to_expr(affine(i) - Affine((), a.least)) for i, a in pairs)
        dims = self.dims[c]
        inner = []
        for i, a in zip(index, window.axes, strict=True):
            if a.length > 1:
                rest = affine(i) - Affine((), a.least)
                if a.dim is not None:
                    rest = rest - affine(dims[a.dim].var).scaled(a.stride)
                inner.append(to_expr(rest))
        return (*(d.var for d in dims), *inner)


def positions(
    computations: Sequence[Computation],
    params: Collection[Buffer],
    constants: Collection[Buffer],
) -> Positions | None:
    """The positions of a group with a contraction, or None if it is not a function of positions.

    Any positions can be computed together, in any order, if

        every Computation with a size has the same number of open dimensions, whose results are
        concatenated (cc); any other one computes from `constants` what no other kernel sees
        an index has at most one of them, times a number, and else something without sizes, whose
        bounds are known; a visible result has it alone, so that each element is written once
        the visible results have as many positions as the last Computation
        a tensor of the group is read after it is written, at the same position, or at d // m of a
        dimension d with m points per position; values depend on d in no other way than d % m
        a guarded read is a constant exactly outside of its tensor

    Maps have no windows, and need no positions. params: the tensors that others see.
    """
    finder = _PositionFinder(tuple(computations), {*params}, {*constants})
    try:
        return finder.found()
    except _NoPositions:
        return None


def in_rectangles(found: Positions, together: int) -> Positions:
    """The positions with `boxes`, if moving windows apart would take as long as multiplying them:

    no reduction reads all of a window again for each result of the same position: convolutions of
    groups, depthwise ones the foremost, read the channels of one group; or a window is read in
    short pieces that lie side by side with those of the next positions, as the rows of an image
    whose channels are first
    a position is one point, and windows move forward with it

    together: contiguous elements of which fewer are a short piece.
    """
    short = any(_in_short_pieces(w, together) for w in found.windows)
    if not (short or _read_once(found)):
        return found
    points = max(found.steps.values())
    axes = [a for w in found.windows for a in w.axes if a.dim is not None]
    if points > 1 or any(a.stride < 1 for a in axes):
        return found
    return replace(found, boxes=True)


def _read_once(found: Positions) -> bool:
    """Whether each result of a position has an own part of each window."""
    for c, node in found.read:
        load = node.then if isinstance(node, Select) else node
        inside = {v for i in load.index for v in postorder(i)}  # type: ignore[attr-defined]
        own = (d.var for d in c.dims if d.combine == CC and d.size != 1)
        if not c.is_map and any(v not in inside for v in own):
            return False
    return True


def _in_short_pieces(window: PositionWindow, together: int) -> bool:
    """Whether contiguous elements of a window are few, and those of neighbors follow on them."""
    last = window.axes[-1]
    return last.dim is not None and last.length < together


class _NoPositions(Exception):
    """Some index or value is not a function of positions."""


def _require(condition: object) -> None:
    if not condition:
        raise _NoPositions


@dataclass(eq=False, slots=True)
class _PositionFinder:
    computations: tuple[Computation, ...]
    params: set[Buffer]
    constants: set[Buffer]

    def found(self) -> Positions:
        known = set(self.constants)
        dims: dict[Computation, tuple[Dim, ...]] = {}
        for c in self.computations:
            made = {o.tensor for o in c.outputs}
            if c.sizes or c.free:
                dims[c] = tuple(d for d in c.dims if not d.static)
                continue
            _require(known.issuperset(c.inputs) and not made & self.params)
            known |= made
        _require(dims and len({len(own) for own in dims.values()}) == 1)
        _require(
            all(own and all(d.combine == CC for d in own) for own in dims.values())
        )
        steps = {c: _step(c, own) for c, own in dims.items()}
        writers = {o.tensor: c for c in dims for o in c.outputs}
        read: dict[tuple[Computation, Node], PositionWindow] = {}
        written: dict[Buffer, PositionWindow] = {}
        for c in dims:
            self._writes(c, dims[c], written)
            self._reads(c, dims, steps, writers, read)
        local = {b: c for b, c in writers.items() if b not in written}
        _require(any(not c.is_map for c in dims))
        counts = [_counts(dims[w.of], steps[w.of]) for w in written.values()]
        last = next(reversed(dims))
        _require(all(n == _counts(dims[last], steps[last]) for n in counts))
        return Positions(self.computations, dims, steps, _joined(read), written, local)

    def _writes(
        self, c: Computation, dims: Sequence[Dim], written: dict[Buffer, PositionWindow]
    ) -> None:
        for o in c.outputs:
            if o.tensor not in self.params:
                opened = {d.var for d in dims}
                own = [i if i in opened else None for i in o.index]
                _require(opened.issubset(own))
                first = index_of(c, o.tensor)
                _require(own == [i if i in opened else None for i in first])
                rest = (n for i in o.index if i not in opened for n in postorder(i))
                _require(opened.isdisjoint(rest))
                continue
            _require(o.tensor not in written)
            axes = _axes(o.index, dims, c)
            used = [a.dim for a in axes if a.dim is not None]
            _require(sorted(used) == list(range(len(dims))))
            for i, a in zip(o.index, axes, strict=True):
                form = affine(i)
                whole = (
                    a.stride == 1 and a.length == 1
                    if a.dim is not None
                    else _is_whole(form)
                )
                _require(whole)
            written[o.tensor] = PositionWindow(o.tensor, axes, c)

    def _reads(
        self,
        c: Computation,
        dims: Mapping[Computation, tuple[Dim, ...]],
        steps: Mapping[Computation, int],
        writers: Mapping[Buffer, Computation],
        read: dict[tuple[Computation, Node], PositionWindow],
    ) -> None:
        """Collect the windows; require that values depend on positions in no other way."""
        env = environment(c.dims)
        opened = {d.var for d in dims[c]}
        static = {d.var for d in c.dims if d.static}
        waiting: list[Any] = [o.value for o in c.outputs]
        seen: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            outside = read_or_constant(node, env)
            load = node.then if outside is not None else node
            if isinstance(load, Load) and load.buffer not in writers:
                window = _window(load, dims[c], c, outside)
                if window is not None:
                    read[c, node] = window
                    continue
            elif isinstance(node, Load):
                waiting += self._local(node, c, dims, steps, writers)
                continue
            elif isinstance(node, Mod) and node.lhs in opened:
                continue  # by the step: see `_step`
            _require(not isinstance(node, Var) or node in static)
            waiting += node.children()

    def _local(
        self,
        load: Load,
        c: Computation,
        dims: Mapping[Computation, tuple[Dim, ...]],
        steps: Mapping[Computation, int],
        writers: Mapping[Buffer, Computation],
    ) -> Iterator[Expr]:
        """Require a read at the same position; the rest of its index."""
        writer = writers[load.buffer]
        order = self.computations.index
        _require(order(writer) < order(c))
        index = index_of(writer, load.buffer)
        places = {d.var: n for n, d in enumerate(dims[writer])}
        for i, w in zip(load.index, index, strict=True):
            place = next((n for v, n in places.items() if v in postorder(w)), None)
            if place is None:
                yield i
                continue
            mine = dims[c][place].var
            divided = isinstance(i, FloorDiv) and i.lhs is mine
            same = i is mine and steps[c] == steps[writer]
            _require(same or (divided and steps[writer] == 1 and steps[c] > 1))


def _counts(dims: Sequence[Dim], step: int) -> tuple[Expr, ...]:
    """How many positions of `step` points cover each dimension."""
    sizes = (affine(as_expr(d.size, INDEX)) for d in dims)
    shifted = (to_expr(size + Affine((), step - 1)) for size in sizes)
    return tuple(n // const(step, INDEX) if step > 1 else n for n in shifted)


def index_of(c: Computation, b: Buffer) -> tuple[Expr, ...]:
    """How a Computation writes one of its tensors; by several results, like the first one."""
    return next(o.index for o in c.outputs if o.tensor is b)


def _step(c: Computation, dims: Sequence[Dim]) -> int:
    """The divisor of all quotients and remainders of open dimensions; 1 without any."""
    opened = {d.var for d in dims}
    found = set()
    for o in c.outputs:
        for node in postorder(o.value):
            if isinstance(node, FloorDiv | Mod) and node.lhs in opened:
                _require(isinstance(node.rhs, Const))
                found.add(int(node.rhs.value.real))  # type: ignore[attr-defined]
    _require(len(found) <= 1)
    return found.pop() if found else 1


def _window(
    load: Load, dims: Sequence[Dim], c: Computation, outside: Const | None
) -> PositionWindow | None:
    """The window of a read; None if all positions read the same."""
    axes = _axes(load.index, dims, c)
    if load.buffer.static and all(a.dim is None for a in axes):
        return None
    return PositionWindow(load.buffer, axes, c, outside)


def _axes(
    index: Sequence[Expr], dims: Sequence[Dim], c: Computation
) -> tuple[WindowAxis, ...]:
    env = environment([d for d in c.dims if d.static])
    found = []
    for i in index:
        _require(not reads_memory(i))
        form = affine(i)
        own = [(n, t) for n, d in enumerate(dims) if (t := form.coefficient(d.var))]
        dim, stride = own[0] if own else (None, 0)
        if dim is not None:
            form = form - affine(dims[dim].var).scaled(stride)
        rest = to_expr(form)
        _require(all(v in env for v in postorder(rest) if isinstance(v, Var)))
        least, most = bounds(rest, env)
        _require(least is not None and most is not None)
        assert least is not None and most is not None
        found.append(WindowAxis(dim, stride, least, most - least + 1))
    return tuple(found)


def _is_whole(form: Affine) -> bool:
    """Whether an index takes each value between its bounds."""
    return not form.terms or (len(form.terms) == 1 and form.terms[0][1] == 1)


def _joined(
    read: Mapping[tuple[Computation, Node], PositionWindow],
) -> dict[tuple[Computation, Node], PositionWindow]:
    """Windows of one tensor that move alike as one that holds them all."""

    def key(w: PositionWindow) -> WindowKey:
        return w.of, w.tensor, w.outside, tuple((a.dim, a.stride) for a in w.axes)

    whole: dict[WindowKey, PositionWindow] = {}
    for w in read.values():
        known = whole.get(key(w), w)
        axes = tuple(map(_around, w.axes, known.axes))
        whole[key(w)] = replace(w, axes=axes)
    return {place: whole[key(w)] for place, w in read.items()}


def _around(a: WindowAxis, b: WindowAxis) -> WindowAxis:
    least = min(a.least, b.least)
    end = max(a.least + a.length, b.least + b.length)
    return replace(a, least=least, length=end - least)
