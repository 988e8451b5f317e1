"""Sums that stay in registers while they run, although the schedule has them in memory.

    for k in 64: for x in 16 vector: C[y, x] add= A[y, k] * B[k, x]

loads and stores C at each step. It becomes

    alloc C.sum: float32[16] in register:
      for x.load in 16 vector: C.sum[x.load] = C[y, x.load]
      for k in 64: for x in 16 vector: C.sum[x] add= A[y, k] * B[k, x]
      for x.store in 16 vector: C[y, x.store] = C.sum[x.store]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var, const
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import expressions
from tilewright.loops.analysis.dependence import writes_apart
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import (
    Alloc,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    block,
    loop,
)
from tilewright.loops.walk import below, names_of


def keep_sums(kernel: Kernel, most: int) -> Kernel:
    """The kernel with its innermost sums in buffers of the scope "register".

    most: bytes that one sum may take there. A nest of loops around nothing but an Update is changed
    from the outermost loop on that is a sum, where

        no index of a target depends on the variable of a sum, or on memory
        no target is read by a value or an extent, or is in registers already
        the other loops are written out or vectors, of constant extent
        two iterations of these, and of the loops around that may run together (all but serial ones,
        within the target's allocation), update two elements (`writes_apart`)
        there is more than one step, and at least one: a number known only at run time is tested;
            the extents of sums do not depend on the nest
        no buffer is a target twice

    Formally: let r be iterations of the sums, u those of the other loops, and t those around that
    may run together. Target i(t, u) is one element for all r; as i is injective, each element has
    one copy at a time; and as nothing but the Update accesses the target in the nest, nothing sees
    that it is changed at the end only. Steps keep their order, and the copy has the target's dtype:
    every result is the same to the last bit.
    """
    names = names_of(kernel)
    body = _kept(kernel.body, (), most, names)
    return kernel if body is kernel.body else kernel.with_body(body)


def _kept(s: Stmt, above: tuple[Stmt, ...], most: int, names: set[str]) -> Stmt:
    if isinstance(s, Unit):
        return s
    if isinstance(s, For):
        nest = _nest(s, above, most)
        if nest is not None:
            return nest.kept(names)
    around = (*above, s)
    changed = {child: _kept(child, around, most, names) for child in below(s)}
    if all(new is old for old, new in changed.items()):
        return s
    made: Stmt = s.map(lambda c: changed.get(c, c))
    return made


@dataclass(frozen=True, eq=False, slots=True)
class _Nest:
    """Loops around an Update, the outermost of them a sum.

    others: those that are not sums. tests: that sums whose extents are not numbers have steps.
    """

    root: For
    update: Update
    others: tuple[For, ...]
    tests: tuple[Expr, ...]

    def kept(self, names: set[str]) -> Stmt:
        """The nest on copies of its targets; names: the kernel's, including new ones."""
        shape = tuple(f.trips or 1 for f in self.others)
        index = tuple(f.var for f in self.others)
        targets = dict(self.update.targets)
        wishes = {b: fresh(names, f"{b.name}.sum", "") for b in targets}
        copies = {
            b: Buffer(name, shape, b.dtype, "register") for b, name in wishes.items()
        }
        update = Update(
            tuple(copies[b] for b in self.update.buffers),
            (index,) * len(copies),
            self.update.values,
            self.update.reducer,
        )
        before: list[Stmt] = []
        behind: list[Stmt] = []
        for b, at in targets.items():
            read = Store(copies[b], index, Load(b, at))
            before.append(self.renamed(read, "load", names))
            write = Store(b, at, Load(copies[b], index))
            behind.append(self.renamed(write, "store", names))
        steps: Stmt = substitute(self.root, {self.update: update})
        body = block(*before, steps, *behind)
        for some in self.tests:
            body = If(some, body, None)
        for copy in copies.values():
            body = Alloc(copy, body)
        return body

    def renamed(self, s: Stmt, suffix: str, names: set[str]) -> Stmt:
        """A statement in the loops that are not sums, under its own names."""
        renaming: dict[Var, Var] = {}
        for f in self.others:
            name = fresh(names, f"{f.var.name}.{suffix}", "")
            renaming[f.var] = Var(name, INDEX)
        inner: Stmt = substitute(s, renaming)
        for f in reversed(self.others):
            inner = loop(renaming[f.var], f.extent, inner, f.kind)
        return inner


def _nest(root: For, above: Sequence[Stmt], most: int) -> _Nest | None:
    """The nest at a loop in others, if it is one that `keep_sums` changes."""
    loops: list[For] = []
    s: Stmt = root
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    if not isinstance(s, Update):
        return None
    indexed = {v for _, index in s.targets for e in index for v in variables(e)}
    others = tuple(f for f in loops if f.var in indexed)
    sums = [f for f in loops if f not in others]
    refused = (
        root in others
        or not _are_sums(sums)
        or not _are_written_out(others)
        or any(isinstance(v, Load) for v in indexed)
        or _are_read(s, loops)
        or len(set(s.buffers)) < len(s.buffers)
        or _is_ragged(sums, loops)
    )
    if refused:
        return None
    unknown = [f.extent for f in sums if f.trips is None]
    tests = tuple(const(0) < extent for extent in unknown)
    found = _Nest(root, s, others, tests)
    if not _fits(found, most) or not _is_injective(found, above):
        return None
    return found


def _are_sums(sums: Sequence[For]) -> bool:
    """Whether they have more than one step, lanes of a vector being one, and no two at once."""
    inner = [f for f in sums if f.kind != "vector"]
    steps = prod(2 if f.trips is None else f.trips for f in inner)
    return steps > 1 and all(f.kind in ("serial", "unroll") for f in inner)


def _is_ragged(sums: Sequence[For], loops: Sequence[For]) -> bool:
    """Whether an extent of a sum depends on a loop of the nest."""
    own = {f.var for f in loops}
    return any(not own.isdisjoint(variables(f.extent)) for f in sums)


def _are_written_out(others: Sequence[For]) -> bool:
    kinds = ("unroll", "vector")
    return all(f.kind in kinds and f.trips is not None for f in others)


def _are_read(update: Update, loops: Sequence[For]) -> bool:
    """Whether a target is read by something else than the update's own steps."""
    roots: list[Expr] = [*expressions(update), *(f.extent for f in loops)]
    read = {e.buffer for root in roots for e in loads(root)}
    return not read.isdisjoint(update.buffers)


def _fits(nest: _Nest, most: int) -> bool:
    """Whether all copies together take few enough bytes, and no target is a register."""
    if any(b.scope == "register" for b in nest.update.buffers):
        return False
    each = prod(f.trips or 1 for f in nest.others)
    return each * sum(b.dtype.itemsize for b in nest.update.buffers) <= most


def _is_injective(nest: _Nest, above: Sequence[Stmt]) -> bool:
    """Whether two iterations that are not steps of one sum update two elements."""
    own = {s.buffer for s in above if isinstance(s, Alloc)} & set(nest.update.buffers)
    last = max((n for n, s in enumerate(above) if _allocates(s, own)), default=-1)
    together = [
        s for s in above[last + 1 :] if isinstance(s, For) and s.kind != "serial"
    ]
    return writes_apart(nest.update, (*together, *nest.others))


def _allocates(s: Stmt, buffers: set[Buffer]) -> bool:
    return isinstance(s, Alloc) and s.buffer in buffers
