"""Delayed values as Computations, with dimensions, index maps and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from math import prod
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, Output
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Load, Var, const
from tilewright.ir.node import Node, postorder, substitute
from tilewright.lift.lengths import array
from tilewright.lift.pending import (
    DeferredOperator,
    DeferredReduction,
    PendingReduction,
    moved,
)
from tilewright.lift.sizes import leaves
from tilewright.lift.tidy import tidy
from tilewright.lift.types import Array as ArrayType
from tilewright.lift.types import Scalar, TupleType, Type
from tilewright.lift.views import Array, View, of_buffers, scalar

_NAMES = "ijklmnpqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One element of a result: where it is written, under which dimensions."""

    dims: tuple[Var, ...]
    buffer: Buffer
    index: tuple[Expr, ...]
    view: View


def leaf_buffers(name: str, t: Type, scope: str = "global") -> list[Buffer]:
    """A buffer per leaf of a value: `name`, or `name.0`, `name.1` for components."""
    buffers = []
    for leaf in leaves(t):
        full_name = ".".join((name, *map(str, leaf.path)))
        buffers.append(Buffer(full_name, leaf.shape, leaf.dtype, scope))
    return buffers


@dataclass(eq=False, slots=True)
class Stages:
    """`done` are the Computations so far, `extents` those of every variable, outer ones first."""

    name: str
    done: list[Computation] = field(default_factory=list)
    extents: dict[Var, int] = field(default_factory=dict)

    def fresh(self, extent: int, name: str = "r") -> Var:
        """A variable over 0..extent-1."""
        v = Var(name, INDEX)
        self.extents[v] = extent
        return v

    def generic(
        self, length: int, body: Callable[[Expr], View]
    ) -> Callable[[Expr], View]:
        """`body`, evaluated once at a variable, so that its stages apply to every element."""
        if length == 1:
            return lambda i: body(const(0))
        r = self.fresh(length)
        found: list[View] = []

        def at(i: Expr) -> View:
            if not found:
                found.append(body(r))
            return moved(found[0], {r: i})

        return at

    def reads(self, view: View) -> int:
        """How many elements of buffers one element of the view takes, at most."""
        match view:
            case Array():
                return self.reads(view.at(self.fresh(view.length)))
            case tuple():
                return sum(map(self.reads, view))
            case PendingReduction(core):
                steps = prod(d.extent for d in core.dims)
                return steps * sum(map(self.reads, view.values()))
            case DeferredOperator(_, args):
                return sum(map(self.reads, args))
        return sum(isinstance(x, Load) for x in postorder(view))

    # -- stages

    @property
    def next_name(self) -> str:
        """The name of the Computation that comes next."""
        return f"{self.name}.{len(self.done)}"

    def force(
        self, core: DeferredReduction
    ) -> tuple[tuple[Var, ...], tuple[Buffer, ...]]:
        """A separate Computation for a reduction: parallel over its free variables."""
        scanned = [d.var for d in core.dims if d.combine == PS]
        free = self.free([*core.values, *scanned], _reduced(PendingReduction(core, {})))
        stage = self.next_name
        shape = tuple(self.extents[v] for v in free)
        count = len(core.reducer.dtypes)
        buffers = []
        entries = []
        for k, dtype in enumerate(core.reducer.dtypes):
            buffer = Buffer(stage if count == 1 else f"{stage}.{k}", shape, dtype)
            buffers.append(buffer)
            entries.append(_Entry(free, buffer, free, PendingReduction(core, {}, k)))
        self.write(entries)
        return free, tuple(buffers)

    def free(self, roots: Sequence[Expr], bound: set[Var]) -> tuple[Var, ...]:
        """The variables in `roots`, outer ones first."""
        found = {v for root in roots for v in postorder(root) if isinstance(v, Var)}
        return tuple(v for v in self.extents if v in found - bound)

    def stage(self, name: str, value: View) -> View:
        """A named value in separate buffers, unless it only rearranges existing buffers."""
        t = view_type(value)
        if not isinstance(t, ArrayType | TupleType):
            return value
        entries = self._entries(value, t, leaf_buffers(name, t))
        if all(_only_moves(x.view) for x in entries):
            return value
        bound: set[Var] = set()
        roots: list[Expr] = []
        for x in entries:
            bound |= {*x.dims, *_reduced(x.view)}
            roots += _roots(x)
        free = self.free(roots, bound)
        shape = tuple(self.extents[v] for v in free)
        buffers: dict[Buffer, Buffer] = {}
        copies = []
        for x in entries:
            leaf = x.buffer
            if leaf not in buffers:
                buffers[leaf] = Buffer(leaf.name, (*shape, *leaf.shape), leaf.dtype)
            dims = (*free, *x.dims)
            index = (*free, *x.index)
            copies.append(_Entry(dims, buffers[leaf], index, x.view))
        self.write(copies)
        return of_buffers(t, list(buffers.values()), free)

    # -- results

    def emit(
        self,
        view: View,
        t: Type,
        buffers: Sequence[Buffer],
    ) -> None:
        """Computations that write the view into one buffer per leaf."""
        self.write(self._entries(view, t, buffers))

    def _entries(
        self,
        view: View,
        t: Type,
        buffers: Sequence[Buffer],
        place: tuple[tuple[Var, ...], tuple[Expr, ...]] = ((), ()),
    ) -> list[_Entry]:
        dims, index = place
        found: list[_Entry] = []
        if isinstance(view, Array):
            start = 0
            for part in view.parts or (view,):
                v = self.fresh(part.length)
                inner = ((*dims, v), (*index, v + start if start else v))
                if isinstance(t, ArrayType):
                    item = t.item
                else:
                    item = Scalar(buffers[0].dtype)
                found += self._entries(part.at(v), item, buffers, inner)
                start += part.length
            return found
        if isinstance(view, tuple):
            assert isinstance(t, TupleType)
            rest = iter(buffers)
            for v, item in zip(view, t.items, strict=True):
                own = [next(rest) for _ in leaves(item)]
                found += self._entries(v, item, own, place)
            return found
        if isinstance(view, DeferredOperator):
            view = view.expr()
        return [_Entry(dims, buffers[0], index, view)]

    def write(self, entries: Sequence[_Entry]) -> None:
        """One Computation per run of entries that belong together."""
        group: list[_Entry] = []
        for entry in entries:
            if group and not self._together(group[0], entry):
                self._one(group)
                group = []
            group.append(entry)
        if group:
            self._one(group)

    def _together(self, a: _Entry, b: _Entry) -> bool:
        if a.dims != b.dims:
            return False
        if isinstance(a.view, PendingReduction) and isinstance(
            b.view, PendingReduction
        ):
            return a.view.core is b.view.core
        return isinstance(a.view, Expr) and isinstance(b.view, Expr)

    def _one(self, entries: Sequence[_Entry]) -> None:
        first = entries[0]
        pending = first.view if isinstance(first.view, PendingReduction) else None
        dims = tuple(Dim(v, self.extents[v], CC) for v in first.dims)
        if pending is None or not self._fits(pending, entries):
            self._add(dims, [(x, scalar(x.view)) for x in entries], None)
            return
        core = pending.core
        values = pending.values()
        scans = {pending.env.get(d.var, d.var) for d in core.dims if d.combine == PS}
        free = []
        scanned = []
        for d in dims:
            if d.var in scans:
                scanned.append(Dim(d.var, d.extent, PS))
            else:
                free.append(d)
        reduced = [d for d in core.dims if d.combine == PW]
        pairs = [(x, values[x.view.component]) for x in entries]
        self._add((*free, *scanned, *reduced), pairs, core.reducer)

    def _fits(self, pending: PendingReduction, entries: Sequence[_Entry]) -> bool:
        """Whether the reduction can be written in place: all components, a scan along a dim."""
        if len(entries) != len(pending.core.reducer.dtypes):
            return False
        for d in pending.core.dims:
            if d.combine == PS:
                v = pending.env.get(d.var, d.var)
                others = [x for k, x in pending.env.items() if k is not d.var]
                if v not in entries[0].dims or self.extents[v] != d.extent:
                    return False
                if any(v in postorder(x) for x in others):
                    return False
        return True

    def _add(
        self,
        dims: tuple[Dim, ...],
        entries: Sequence[tuple[_Entry, Expr]],
        reducer: Any,
    ) -> None:
        """A Computation with its own variables, named i, j, k, ..."""
        env: dict[Node, Node] = {}
        bounds = {}
        renamed = []
        for k, d in enumerate(dims):
            v = Var(_NAMES[k] if k < len(_NAMES) else f"d{k}", INDEX)
            env[d.var] = v
            bounds[v] = (0, d.extent - 1)
            renamed.append(Dim(v, d.extent, d.combine))

        def at(e: Expr) -> Expr:
            return tidy(substitute(e, env), bounds)

        outputs = []
        for x, value in entries:
            index = tuple(map(at, x.index))
            outputs.append(Output(x.buffer, index, at(value)))
        self.done.append(
            Computation(self.next_name, tuple(renamed), tuple(outputs), reducer)
        )


def _reduced(view: View) -> set[Var]:
    """The variables that a pending reduction binds."""
    dims = view.core.dims if isinstance(view, PendingReduction) else ()
    return {d.var for d in dims if d.combine == PW}


def _roots(x: _Entry) -> tuple[Expr, ...]:
    if isinstance(x.view, PendingReduction):
        return x.view.values()
    return (scalar(x.view),)


def _only_moves(view: View) -> bool:
    """Whether a leaf is an element of a buffer, a constant or an index."""
    if isinstance(view, Load | Const):
        return True
    if not isinstance(view, Expr):
        return False
    return not any(isinstance(x, Load) for x in postorder(view))


def view_type(view: View) -> Type:
    match view:
        case tuple():
            return TupleType(tuple(map(view_type, view)))
        case Array():
            return array(view_type(view.at(const(0))), view.length)
        case PendingReduction(core, _, component):
            return Scalar(core.reducer.dtypes[component])
    return Scalar(scalar(view).dtype)
