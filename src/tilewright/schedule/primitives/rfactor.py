"""rfactor: a reduction through partial results, one per iteration of a loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

from tilewright.base.names import fresh
from tilewright.compute.reducer import is_sum
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Load, Or, Var, const
from tilewright.ir.node import postorder, substitute
from tilewright.loops.analysis.access import (
    Env,
    Index,
    accesses_of,
    environment,
)
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.analysis.region import Region, gapless, region
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import (
    Alloc,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
    block,
    loop,
)
from tilewright.loops.scopes import Scope
from tilewright.loops.walk import StatementPlace, names_of, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import refuse
from tilewright.schedule.registry import primitive_with
from tilewright.schedule.staging import guarded, sweep


@primitive_with(options=["buffer", "suffix"])
def rfactor(
    kernel: Kernel,
    loop: str,
    scope: Scope = "register",
    buffer: str | None = None,
    suffix: str = ".rf",
) -> tuple[Kernel, tuple[str, ...]]:
    """Give each iteration of a reduction loop its own accumulator; the new buffers' names.

    args: a loop (often the inner one of a split: the vector lanes); the scope of the partial
        results; whose reduction, where the loop has several Updates; the suffix of their names.
    requires: the reducer is commutative; the Update's place does not depend on the loop, and is the
        same for all values of the reducer; the loop and the reduction loops directly around it have
        constant extents, and nothing else in them uses what the Update changes. The region that it
        changes has no gaps, since the partial results are combined into all of it: where a guard
        kept an element from being changed at all, it is combined with the neutral element.
        Or the place depends on the loop through memory only (a scatter): then each iteration has
        an accumulator like the whole buffer, not in registers, and `top` is the loop itself. A
        sum of floats starts from -0.0, which changes no float that it is added to, and 0.0 the sign
        of a zero; of other reducers, a float that is neutral is not combined.
    `top` is the outermost loop directly around, over which the place does not change either. The
    loop becomes parallelizable inside `top`; loops made: `<loop>.clear` and `<loop>.combine`, plus
    `<new>.c<dim>`, `<new>.m<dim>` where the place is a region.
    before: for o: for i: { B(o, i); C[] += A[o, i] }
    after:  alloc p: { for i.clear: p[i.clear] = 0
                       for o: for i: { B(o, i); p[i] += A[o, i] }
                       for i.combine: C[] += p[i.combine] }
    """
    f, place = tree.find_loop(kernel, loop, "rfactor")
    update = _the_update(f, buffer)
    lanes = tree.trips(f, "rfactor")
    _check_commutes(update, loop)
    scatters = _check_one_place(f, update)
    index = update.indices[0]
    top, above = (f, place.above) if scatters else _top(f, place, index)
    env = environment(kernel.body)
    taken = names_of(kernel)
    _check_unused(top, update, loop)
    if scatters:
        box = _whole(update.buffers[0], loop, scope)
    else:
        box = _box(top, update, loop, env)
    shape = (lanes, *box.shape)
    parts = tuple(
        Buffer(fresh(taken, b.name + suffix), shape, b.dtype, scope)
        for b in update.buffers
    )
    local = (f.var, *box.local(index))
    step = Update(parts, (local,) * len(parts), update.values, update.reducer)
    inner = _replaced(top, update, step)
    joined = _Joined(parts, update, lanes, box, env, scatters)
    clear = joined.each(f"{loop}.clear", f"{parts[0].name}.c", taken, joined.cleared)
    join = joined.each(f"{loop}.combine", f"{parts[0].name}.m", taken, joined.combined)
    new: Stmt = block(clear, inner, join)
    for b in reversed(parts):
        new = Alloc(b, new)
    result = edit.put(kernel, StatementPlace(top, above), new)
    return result, tuple(b.name for b in parts)


def _the_update(f: For, buffer: str | None) -> Update:
    """The loop's only Update, or its only Update of the buffer."""
    updates: list[Update] = []
    found: list[Update] = []
    for p in walk(f):
        if not isinstance(p.stmt, Update):
            continue
        updates.append(p.stmt)
        is_asked = buffer is None or buffer in (b.name for b in p.stmt.buffers)
        is_whole = any(isinstance(s, Unit | While) for s in p.above)
        if is_asked and not is_whole:
            found.append(p.stmt)
    if len(found) == 1 and not set(found[0].buffers) & allocated(f):
        return found[0]
    names = ", ".join(u.buffers[0].name for u in updates) or "none"
    whose = f" of {buffer}" if buffer else ""
    raise refuse(
        "rfactor",
        f.var.name,
        f"there is not one Update{whose} in it that begins outside; reductions in it: {names}",
        "name the buffer of one of them, or decompose_reduction or fission first",
    )


def _check_commutes(update: Update, name: str) -> None:
    """The partial results may be combined in another order than the values were."""
    if not update.reducer.commutative:
        raise refuse(
            "rfactor",
            name,
            f"{update.reducer} does not commute",
            "keep the reduction in order",
        )


def _check_unused(top: For, update: Update, name: str) -> None:
    """Nothing else in all of `top` uses what the Update changes."""
    used = accesses_of(top, *update.buffers)
    if len(used) > len(update.buffers):
        raise refuse(
            "rfactor",
            name,
            f"{update.buffers[0].name}, which it updates, is used by other values in it",
            "only values that do not depend on the running result can be regrouped",
        )


def _whole(buffer: Buffer, name: str, scope: Scope) -> Region:
    """All of a buffer that is written at indices from memory."""
    if scope == "register":
        raise refuse(
            "rfactor",
            name,
            f"it scatters into {buffer.name}, at indices that registers do not have",
            "scope='stack' or 'global'",
        )
    return Region((const(0),) * len(buffer.shape), buffer.shape)


def _box(
    top: For,
    update: Update,
    name: str,
    env: Env,
) -> Region:
    """What the Update changes in all of `top`: without gaps."""
    outside = accesses_of(top, update.buffers[0])
    box = region(update.buffers[0], outside, env, "rfactor")
    if not all(gapless(a, env) for a in outside):
        raise refuse(
            "rfactor",
            name,
            f"{outside[0]} leaves elements of its region {list(box.shape)} out, which are not its",
            "rfactor an inner loop, or cache_write the result first",
        )
    return box


def _check_one_place(f: For, update: Update) -> bool:
    """The values of one accumulator are at one index, which does not depend on the loop.

    Whether it does through memory, and nowhere else: then it is a scatter.
    """
    shapes = {b.extents for b in update.buffers}
    if len(set(update.indices)) > 1 or len(shapes) > 1:
        places = (f"{b.name}{list(index)}" for b, index in update.targets)
        raise refuse(
            "rfactor",
            f.var.name,
            f"the values of {update.reducer.name} are at different places: {', '.join(places)}",
            "rfactor before the layout of one of them changes",
        )
    index = update.indices[0]
    moving = [i for i in index if f.var in variables(i)]
    if any(f.var in variables(_outside_of_memory(i)) for i in moving):
        raise refuse(
            "rfactor",
            f.var.name,
            f"{update.buffers[0].name}{list(index)} depends on it: no reduction loop",
            "name a loop that the result's place does not depend on",
        )
    return bool(moving)


def _outside_of_memory(index: Expr) -> Expr:
    """An index with its reads replaced by 0."""
    found: dict[Any, Any] = {
        n: const(0, n.dtype) for n in postorder(index) if isinstance(n, Load)
    }
    return substitute(index, found)  # type: ignore[no-any-return]


def _top(f: For, place: StatementPlace, index: Index) -> tuple[For, tuple[Stmt, ...]]:
    """The outermost directly nested loop around `f` over which the result's place is fixed."""
    top = f
    above = place.above
    while above and isinstance(above[-1], For):
        outer = above[-1]
        if outer.kind != "serial" or any(outer.var in variables(i) for i in index):
            break
        top = outer
        above = above[:-1]
    return top, above


class _Joined(NamedTuple):
    """The partial results `parts[lane, ...]` of an update, over the box that it changes."""

    parts: tuple[Buffer, ...]
    update: Update
    lanes: int
    box: Region
    env: Env
    scatters: bool

    def each(
        self,
        lane: str,
        prefix: str,
        taken: set[str],
        body: Callable[[Var, Index], Stmt],
    ) -> Stmt:
        """The nest over lanes and box that does something to each partial result."""
        v = Var(fresh(taken, lane), INDEX)
        inner = sweep(
            prefix, self.box.shape, taken, self.env, lambda local: body(v, local)
        )
        return loop(v, self.lanes, inner)

    def cleared(self, lane: Var, local: Index) -> Stmt:
        """A partial result becomes the neutral element."""
        starts = zip(self.parts, self.neutral, strict=True)
        return block(*(Store(b, (lane, *local), neutral) for b, neutral in starts))

    @property
    def neutral(self) -> tuple[Const, ...]:
        """What partial results start from; the 0.0 of other sums than scatters takes no constant
        from memory."""
        found = self.update.reducer.identity
        if not self.scatters or not is_sum(self.update.reducer):
            return found
        return tuple(const(-0.0, c.dtype) for c in found)  # of integers, that is 0

    def combined(self, lane: Var, local: Index) -> Stmt:
        """Add a partial result to the total, at the box's position in its buffer."""
        buffers = self.update.buffers
        reducer = self.update.reducer
        point = self.box.point(local)
        values = tuple(Load(b, (lane, *local)) for b in self.parts)
        step: Stmt = Update(buffers, (point,) * len(buffers), values, reducer)
        floats = any(v.dtype.is_float for v in values)
        if self.scatters and floats and not is_sum(reducer):
            pairs = zip(values, reducer.identity, strict=True)
            step = If(reduce(Or, (v.ne(neutral) for v, neutral in pairs)), step, None)
        return guarded(point, buffers[0], self.env, step)


def _replaced(root: Stmt, old: Stmt, new: Stmt) -> Stmt:
    if root is old:
        return new
    rebuilt: Stmt = root.map(
        lambda c: _replaced(c, old, new) if isinstance(c, Stmt) else c
    )
    return rebuilt
