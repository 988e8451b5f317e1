"""ArgMax and ArgMin whose steps come in the order of their indices, without comparing these.

    index[l] = 9223372036854775807; value[l] = -inf    # for all l
    for k in 64: for l in 16 vector: value[l], index[l] argmax= x[k*16 + l], k*16 + l

asks of each step whether its index is the smaller one, to settle ties. It never is, so the loop
takes the operator of `in_order`, which keeps what there is. Only the first step may meet the
identity, whose index is greater than all: it is done before the loop in the old way, too.

    for l in 16 vector: value[l], index[l] argmax= x[l], l
    for k in 64: for l in 16 vector: value[l], index[l] argmax_in_order= x[k*16 + l], k*16 + l
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.compute.reducer import Reducer, in_order
from tilewright.expr.affine import affine
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Var, const
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import expressions
from tilewright.loops.analysis.dependence import writes_apart
from tilewright.loops.analysis.effects import writes
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
    loop,
)
from tilewright.loops.walk import names_of, walk


def ordered_pairs(kernel: Kernel) -> Kernel:
    """The kernel with `in_order` in the place of the operators of ArgMax and ArgMin.

    Done to a nest of loops around nothing but such an Update, where

        both targets are allocated in the kernel, no loop lies between their allocations and the
            nest, and there nothing wrote to them before but their parts of the operator's identity
            and nests of this kind on the same pair, whose indices are all smaller
        a loop of the nest is either one that the targets' indices depend on, two iterations of
            which change two elements (`writes_apart`), or a sum: serial or written out
        no index of a target depends on memory, and the values and extents do not read a target
        extents are constants, and at least one
        the step's index is a linear form in int64, which increases with the sums: the factor of
            each is more than all those inside of it add together

    Formally: an element's steps have increasing indices, and it holds an identity or a smaller
    index. Where it holds an index, the operators agree. The step that is done twice leaves no
    identity, and changes nothing the second time: its own value ties with itself.
    """
    names = names_of(kernel)
    body = _Walk(names, {}).changed(kernel.body)
    return kernel if body is kernel.body else kernel.with_body(body)


@dataclass(slots=True)
class _Held:
    """What a buffer holds so far: constants that were stored, and results of `nest`'s pair.

    highest: the greatest index of a step.
    """

    constants: set[Const]
    pair: tuple[Buffer, ...] = ()
    highest: int = -1


@dataclass(slots=True)
class _Walk:
    """names: of all loops. held: of the buffers allocated with no loop between there and here, as
    far as that is known."""

    names: set[str]
    held: dict[Buffer, _Held]

    def changed(self, s: Stmt) -> Stmt:
        """The statement, where the nests before it are already in `held`."""
        if isinstance(s, Alloc):
            self.held[s.buffer] = _Held(set())
            body = self.changed(s.body)
            self.held.pop(s.buffer, None)
            if body is s.body:
                return s
            return Alloc(s.buffer, body)
        if isinstance(s, Block):
            found = tuple(map(self.changed, s.stmts))
            pairs = zip(found, s.stmts, strict=True)
            if all(new is old for new, old in pairs):
                return s
            return Block(found)
        if isinstance(s, If):
            then = self.changed(s.then)
            other = None if s.otherwise is None else self.changed(s.otherwise)
            if then is s.then and other is s.otherwise:
                return s
            return If(s.condition, then, other)
        if isinstance(s, For):
            return self._loop(s)
        self._written(s)
        return s

    def _loop(self, s: For) -> Stmt:
        nest = _nest(s)
        if nest is not None and self._follows(nest):
            return nest.ordered(self.names)
        body = _Walk(self.names, {}).changed(s.body)
        self._written(s)
        if body is s.body:
            return s
        return For(s.var, s.extent, s.kind, body)

    def _written(self, s: Stmt) -> None:
        """Note what a statement that is no nest leaves behind."""
        for b in writes(s):
            stored = _stores(s, b)
            if not stored:
                self.held.pop(b, None)
            elif b in self.held:
                self.held[b].constants |= stored

    def _follows(self, nest: _Nest) -> bool:
        """Whether what the targets hold has smaller indices than the nest, which is then noted."""
        pair, op = nest.update.buffers, nest.update.reducer
        held = [self.held.get(b) for b in pair]
        for h, neutral in zip(held, op.identity, strict=True):
            if h is None or h.pair not in ((), pair):
                return False
            if not h.constants <= {neutral}:
                return False
            if nest.least <= h.highest:
                return False
        for h in held:
            assert h is not None
            h.pair, h.highest = pair, nest.most
        return True


def _stores(s: Stmt, b: Buffer) -> set[Const]:
    """The constants that a statement stores to a buffer; none if it does anything else to it."""
    found: set[Const] = set()
    for at in walk(s):
        inner = at.stmt
        if isinstance(inner, Store) and inner.buffer is b:
            if not isinstance(inner.value, Const):
                return set()
            found.add(inner.value)
        elif not isinstance(inner, For | Block | Store | If) and b in writes(inner):
            return set()
    return found


@dataclass(frozen=True, eq=False, slots=True)
class _Nest:
    """Loops around an Update; op: that in order. others: those that are not sums.

    least, most: bounds of the index of a step.
    """

    root: For
    update: Update
    op: Reducer
    sums: tuple[For, ...]
    others: tuple[For, ...]
    least: int
    most: int

    def ordered(self, names: set[str]) -> Stmt:
        """The first step of each element as it was, and then all of them in order."""
        u = self.update
        first: dict[object, object] = {f.var: const(0) for f in self.sums}
        for f in self.others:
            first[f.var] = Var(fresh(names, f"{f.var.name}.first", ""), INDEX)
        start: Stmt = substitute(u, first)
        for f in reversed(self.others):
            var = first[f.var]
            assert isinstance(var, Var)
            start = loop(var, f.extent, start, f.kind)
        step = Update(u.buffers, u.indices, u.values, self.op)
        rest: Stmt = substitute(self.root, {u: step})
        return block(start, rest)


def _nest(root: For) -> _Nest | None:
    """The nest at a loop if it is one, whatever its targets hold."""
    loops: list[For] = []
    s: Stmt = root
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    op = in_order(s.reducer) if isinstance(s, Update) else None
    if op is None or not isinstance(s, Update):
        return None
    places = [e for _, index in s.targets for e in index]
    indexed = {v for e in places for v in variables(e)}
    others = tuple(f for f in loops if f.var in indexed)
    sums = tuple(f for f in loops if f not in others)
    trips = {f.var: f.trips for f in loops}
    ranges = {v: (0, n - 1) for v, n in trips.items() if n}
    least, most = bounds(s.values[1], ranges)
    refused = (
        len(ranges) < len(loops)
        or not all(f.kind in ("serial", "unroll") for f in sums)
        or any(map(loads, places))
        or any(e.buffer in s.buffers for root in expressions(s) for e in loads(root))
        or not _increases(s.values[1], sums)
        or not writes_apart(s, others)
    )
    if refused or least is None or most is None:
        return None
    return _Nest(root, s, op, sums, others, least, most)


def _increases(index: Expr, sums: Sequence[For]) -> bool:
    """Whether an index is greater in each step of the sums, outermost first, than in the last."""
    form = affine(index)
    own = {f.var for f in sums}
    if any(atom not in own and own & variables(atom) for atom, _ in form.terms):
        return False
    inside = 0
    for f in reversed(sums):
        factor = form.coefficient(f.var)
        if factor <= inside:
            return False
        inside += factor * ((f.trips or 1) - 1)
    return True
