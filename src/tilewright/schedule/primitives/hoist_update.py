"""hoist_update: values that all iterations of a loop update alike, updated once before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.base.names import fresh
from tilewright.expr.nodes import Buffer, Call, Div, Expr, Load, const
from tilewright.ir.node import postorder, substitute
from tilewright.loops.analysis.access import Index, accesses_of, environment
from tilewright.loops.analysis.effects import reads, writes
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import Alloc, Block, For, Kernel, Stmt, Store, Update, block
from tilewright.loops.walk import names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import refuse, refuse_buffer
from tilewright.schedule.registry import primitive
from tilewright.schedule.relocate import own_buffer

_VERB = "hoist_update"


@primitive
def hoist_update(kernel: Kernel, loop: str) -> tuple[Kernel, tuple[str, ...]]:
    """Update once, before a loop, the values that all its iterations update alike; their buffers.

    args: the loop, around one Update of several values and nothing else.
    requires: some values are combined from one another alone, with operands that do not depend on
        the loop (they and what is combined from them are alike in all iterations); the others are
        each combined from itself and from these. The buffers of the alike values are allocated in
        the kernel, no operand reads them, and each has a dimension that the loop goes over as a
        whole and in order. So does, alone, a loop around any other Store to them, whose value and
        surroundings do not depend on it, and which reads none of them.
    The dimension gets one element. What the other values take from the alike ones is computed once,
    too, and these are stored by the loop. An online softmax so has one maximum and one sum for each
    row, and not for each element of the mean.
    before: alloc m[8], y[8]: { for c.init: { m[c.init] = -inf; y[c.init] = 0 }
                                for b: for c: m[c], y[c] op= p[b], v[b, c] }
    after:  alloc m[1], y[8]: { m[0] = -inf; for c.init: y[c.init] = 0
                                for b: alloc t[1]: { t[0] = f(m[0], p[b]); m[0] = max(m[0], p[b])
                                                     for c: y[c] = g(y[c], v[b, c], t[0]) } }
    """
    f, _ = tree.find_loop(kernel, loop, _VERB)
    update = f.body
    if not isinstance(update, Update):
        why = "its body is not one Update"
        raise refuse(_VERB, loop, why, "reorder or fission the loops around it first")
    targets = list(update.targets)
    alike = _alike(f, update)
    moves: dict[Buffer, edit.Move] = {}
    made: dict[Buffer, Buffer] = {}
    hoisted: dict[For, list[Store]] = {}
    for n in alike:
        b, index = targets[n]
        own_buffer(kernel, b.name, _VERB)
        axis = _axis(f, b, index)
        extents = (*b.extents[:axis], 1, *b.extents[axis + 1 :])
        made[b] = Buffer(b.name, extents, b.dtype, b.scope)
        moves[b] = _first(made[b], axis)
        for store, around in _stores(kernel, b, axis, update):
            hoisted.setdefault(around, []).append(store)
    parts: dict[Any, Any] = {g: _apart(g, stores) for g, stores in hoisted.items()}
    parts[f] = _Hoisted(f, update, alike, names_of(kernel)).made()
    body = edit.rewrite(
        substitute(kernel.body, parts), environment(kernel.body), moves=moves
    )
    names = tuple(b.name for b in made.values())
    return kernel.with_body(edit.with_allocs(body, made)), names


def _alike(f: For, u: Update) -> tuple[int, ...]:
    """The values of an update that are alike in all iterations of a loop around it."""
    r = u.reducer
    found = {n for n, value in enumerate(u.values) if not _depends(value, f, u)}
    while True:
        own = {v for n in found for v in (r.lhs[n], r.rhs[n])}
        rest = {n for n in found if not own.issuperset(variables(r.result[n]))}
        if not rest:
            break
        found -= rest
    others = set(range(len(u.values))) - found
    if not found or not others:
        what = "all" if found else "none"
        why = f"{what} of the values that it updates are alike in its iterations"
        raise refuse(_VERB, f.var.name, why, "keep the Update in the loop")
    for n in others:
        if any(r.lhs[m] in variables(r.result[n]) for m in others - {n}):
            why = f"{u.buffers[n].name} is combined from another value that it changes"
            raise refuse(_VERB, f.var.name, why, "keep the Update in the loop")
    return tuple(sorted(found))


def _depends(e: Expr, f: For, u: Update) -> bool:
    """Whether an operand differs between iterations, or reads what the update changes."""
    return f.var in variables(e) or any(x.buffer in u.buffers for x in loads(e))


def _axis(f: For, b: Buffer, index: Index) -> int:
    """The dimension of a buffer that a loop goes over, all of it and alone."""
    along = [n for n, i in enumerate(index) if f.var in variables(i)]
    whole = len(along) == 1 and index[along[0]] is f.var
    if not whole or f.trips != b.extents[along[0]] or f.kind != "serial":
        why = f"it does not go over a whole dimension of {b.name}, in order"
        hint = "take it before it is split or bound, and compute_at the buffer first"
        raise refuse(_VERB, f.var.name, why, hint)
    return along[0]


def _first(new: Buffer, axis: int) -> edit.Move:
    """The element of the dimension that is left."""
    return lambda index: (new, (*index[:axis], const(0), *index[axis + 1 :]))


def _stores(
    kernel: Kernel, b: Buffer, axis: int, update: Update
) -> Iterator[tuple[Store, For]]:
    """What else writes a buffer, each with the loop over the dimension directly around it."""
    for a in accesses_of(kernel.body, b):
        s = a.place.stmt
        if s is update or not a.writes:
            continue
        around = next(
            (x for x in a.place.above[::-1] if not isinstance(x, Block)), None
        )
        if not isinstance(s, Store) or not isinstance(around, For):
            raise _no_store(b)
        changed, used = writes(around), reads(around)
        varying = around.var in variables(s.value) or not changed.isdisjoint(reads(s))
        if varying or b in used or _axis(around, b, s.index) != axis:
            raise _no_store(b)
        yield s, around


def _no_store(b: Buffer) -> ScheduleError:
    why = "not all that writes it stores one value along the dimension, in a loop of its own"
    return refuse_buffer(_VERB, b.name, why, "decompose_reduction first")


def _apart(g: For, stores: Collection[Store]) -> Stmt:
    """Stores before their loop, which keeps what else is in it."""
    parts = g.body.stmts if isinstance(g.body, Block) else (g.body,)
    rest = [s for s in parts if s not in stores]
    first = [substitute(s, {g.var: const(0)}) for s in stores]
    if not rest:
        return block(*first)
    return block(*first, For(g.var, g.extent, g.kind, block(*rest)))


@dataclass(eq=False)
class _Hoisted:
    """The update in two parts."""

    f: For
    u: Update
    alike: Collection[int]
    taken: set[str]

    @property
    def mine(self) -> set[Buffer]:
        """The buffers of the alike values."""
        return {self.u.buffers[n] for n in self.alike}

    def made(self) -> Stmt:
        """Temporaries, the alike values, and the loop over the others."""
        f, u = self.f, self.u
        first: dict[Any, Any] = {f.var: const(0)}
        left = [Load(b, index) for b, index in u.targets]
        for n in self.alike:
            left[n] = substitute(left[n], first)
        results = u.reducer.combine(tuple(left), u.values)
        parts: list[tuple[Buffer, Expr]] = []
        for n, e in enumerate(results):
            mine = [e] if n in self.alike else self.parts(e)
            parts += ((u.buffers[n], part) for part in mine)
        once: dict[Expr, Load] = {}
        for b, e in [*_repeated(parts), *parts]:
            if e not in once:
                once[e] = self.temporary(b, e)
        before: list[Stmt] = []
        known: dict[Any, Any] = {}
        for e, t in once.items():
            before.append(Store(t.buffer, t.index, substitute(e, known)))
            known[e] = t
        inside: list[Stmt] = []
        for n, (b, index) in enumerate(u.targets):
            value = substitute(results[n], {**once})
            if n in self.alike:
                before.append(Store(b, substituted(index, first), value))
            else:
                inside.append(Store(b, index, value))
        made = block(*before, For(f.var, f.extent, f.kind, block(*inside)))
        for t in once.values():
            made = Alloc(t.buffer, made)
        return made

    def parts(self, e: Expr) -> Iterator[Expr]:
        """The largest parts of a value that read memory, alike in all iterations."""
        read = [x for x in postorder(e) if isinstance(x, Load)]
        others = set(self.u.buffers) - self.mine
        varies = self.f.var in variables(e) or any(x.buffer in others for x in read)
        if read and not varies:
            yield e
        elif read:
            for child in e.children():
                if isinstance(child, Expr):
                    yield from self.parts(child)

    def temporary(self, b: Buffer, e: Expr) -> Load:
        """A register of the iteration."""
        name = fresh(self.taken, f"{b.name}.once")
        return Load(Buffer(name, (1,), e.dtype, "register"), (const(0),))


def _repeated(parts: Sequence[tuple[Buffer, Expr]]) -> Iterator[tuple[Buffer, Expr]]:
    """Calls and quotients that several values have in common, inner ones first."""
    found: dict[Expr, list[Buffer]] = {}
    for b, part in parts:
        for e in dict.fromkeys(postorder(part)):
            if isinstance(e, Call | Div):
                found.setdefault(e, []).append(b)
    return ((all_[0], e) for e, all_ in found.items() if len(all_) > 1)


def substituted(index: Index, env: dict[Any, Any]) -> Index:
    """An index with variables replaced."""
    return tuple(substitute(i, env) for i in index)
