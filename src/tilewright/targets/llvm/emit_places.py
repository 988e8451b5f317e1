"""The addresses of an access, by lane of the enclosing vector loop."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tilewright.base.dataclass import dataclass
from tilewright.expr.affine import Affine, affine, rejoined, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, Buffer, Expr, Var, as_expr
from tilewright.expr.simplify import simplify
from tilewright.targets.llvm.emit_text import LlvmValue, int_vector, integer
from tilewright.targets.llvm.lanes import Lanes, lanes_of
from tilewright.targets.llvm.processor import Processor
from tilewright.targets.llvm.value_numbering import PURE, Info, Scopes

Terms = tuple[tuple[Expr, int], ...]  # of a linear form


# Not frozen for speed: many are created, and a frozen one takes three times as long.
@dataclass(slots=True, eq=False)
class LaneLayout:
    """The relative positions of the elements of an access: `form` + steps[lane] + varying.

    form: what all lanes have in common. varying: terms with another value in each lane. steps: one
    for all lanes where every lane means the same element.
    """

    form: Affine
    varying: tuple[tuple[Expr, int], ...]
    steps: tuple[int, ...]

    @property
    def lanes(self) -> int:
        """How many elements are accessed at once."""
        return len(self.steps)

    @property
    def is_uniform(self) -> bool:
        """Whether all lanes mean one element."""
        return self.lanes == 1 and not self.varying

    @property
    def is_dense(self) -> bool:
        """Whether the lanes mean neighboring elements in order, or all of them one."""
        return not self.varying and self.steps == tuple(range(self.lanes))

    @property
    def may_meet(self) -> bool:
        """Whether two lanes may mean one element and others not."""
        return bool(self.varying) or len(set(self.steps)) < self.lanes


@dataclass(slots=True, eq=False)
class LaneAccess(LaneLayout):
    """The place of one element per lane: `pointer` + steps[lane] elements + offsets (bytes).

    form: the elements before `pointer`. offsets: a vector of integers if the lanes' places are not
    static. reach: the first and the last element after `pointer` that steps and offsets access, if
    known.
    """

    pointer: LlvmValue
    offsets: LlvmValue | None = None
    reach: tuple[int, int] | None = None


class AddressEmitter(Scopes):
    """Addresses inside one function; `value` comes from the expression emitter."""

    def __init__(self, machine: Processor) -> None:
        super().__init__(machine)
        self.pointers: dict[Buffer, LlvmValue] = {}
        # Buffers allocated inside the vector loop: one copy per lane, lanes innermost.
        self.private: dict[Buffer, int] = {}
        self.vector: tuple[Var, int] | None = None
        self.number: int | None = None
        self.guard: Expr | None = None
        # Inside of a loop that LLVM writes out: see `emit_repeated`.
        self.repeating = False
        # How many more values a function would have named, written out and its arrays in memory.
        self.spared = 0
        self._lanes: dict[tuple[Expr, Var, int], Lanes | None] = {}
        self._addresses: dict[tuple[Buffer, tuple[Expr, ...]], Affine] = {}

    def value(self, e: Expr) -> LlvmValue:
        """The held value of an expression; see `emit_expr`."""
        raise NotImplementedError

    @property
    def lanes(self) -> int:
        """Lanes of the vector loop around the current place, or 1."""
        if self.vector is not None:
            return self.vector[1]
        return 1

    def address(self, buffer: Buffer, index: tuple[Expr, ...]) -> Affine:
        """`address`, cached: a reduction computes the place that it reads and writes three
        times."""
        key = (buffer, index)
        form = self._addresses.get(key)
        if form is None:
            form = self._addresses[key] = address(buffer, index)
        return form

    def layout(self, buffer: Buffer, index: tuple[Expr, ...]) -> LaneLayout:
        """The layout of the lanes of `buffer[index]`; remembered in the innermost scope."""
        known = self.scopes[-1].layouts
        key = (buffer, index, self.vector, self.number)
        found = known.get(key)
        if found is None:
            found = known[key] = self._layout(buffer, index)
        return found

    def _layout(self, buffer: Buffer, index: tuple[Expr, ...]) -> LaneLayout:
        form = self.address(buffer, index)
        copies = self.private.get(buffer, 1)
        if copies > 1:
            form = form.scaled(copies) + Affine((), self.number or 0)
        form, steps = self.parted(form)
        if copies > 1 and self.number is None:
            steps = [step + n for n, step in enumerate(steps)]
        uniform: list[tuple[Expr, int]] = []
        varying: list[tuple[Expr, int]] = []
        for atom, c in form.terms:
            (varying if self.value(atom).lanes > 1 else uniform).append((atom, c))
        const = form.const
        if len(set(steps)) == 1:
            const += steps[0]
            steps = [0] * len(steps) if varying else [0]
        return LaneLayout(Affine(tuple(uniform), const), tuple(varying), tuple(steps))

    def access(self, buffer: Buffer, index: tuple[Expr, ...]) -> LaneAccess:
        """The address of `buffer[index]`, per lane."""
        layout = self.layout(buffer, index)
        form, varying, steps = layout.form, layout.varying, layout.steps
        size = buffer.dtype.itemsize
        pointer = self.pointer(buffer, form.terms, form.const * size)
        if not varying:
            return LaneAccess(form, varying, steps, pointer)
        reach = self._reach(varying, steps)
        offsets = self._offsets(varying, steps, size, reach)
        return LaneAccess(form, varying, steps, pointer, offsets, reach)

    def _reach(self, terms: Terms, steps: tuple[int, ...]) -> tuple[int, int] | None:
        low, high = bounds(to_expr(Affine(terms, 0)), self.ranges)
        if low is None or high is None:
            return None
        return low + min(steps), high + max(steps)

    def parted(self, form: Affine) -> tuple[Affine, list[int]]:
        """Split a form into its base and its known offsets per lane."""
        steps = [0] * self.lanes
        if self.vector is None:
            return form, steps
        lane, count = self.vector
        rest: dict[Expr, int] = {}
        start = form.const
        for atom, c in form.terms:
            found = self.lanes_of(atom, lane, count)
            if found is None:
                rest[atom] = rest.get(atom, 0) + c
                continue
            start += _add(rest, found.base, c)
            steps = [n + c * step for n, step in zip(steps, found.steps, strict=True)]
        return _form(rest, start), steps

    def forget(self, var: Var) -> None:
        """As `Scopes.forget`, and forget indices simplified by ranges."""
        super().forget(var)
        self._lanes.clear()

    def lanes_of(self, e: Expr, lane: Var, count: int) -> Lanes | None:
        """The lanes of an index, simplified by the loops' ranges; None if it is uniform or has no
        such form."""
        key = (e, lane, count)
        if key not in self._lanes:
            self._lanes[key] = self._lanes_of(e, lane, count)
        return self._lanes[key]

    def _lanes_of(self, e: Expr, lane: Var, count: int) -> Lanes | None:
        info = self.info(e)
        if lane not in info.vars or info.reads:
            return None
        if e is not lane:
            env = {v: self.ranges[v] for v in info.vars if v in self.ranges}
            e = simplify(e, env)
        return lanes_of(e, lane, count)

    def _offsets(
        self,
        terms: Terms,
        steps: tuple[int, ...],
        size: int,
        reach: tuple[int, int] | None,
    ) -> LlvmValue:
        """Bytes per lane, in 32 bits if they fit: gathers take twice as many of them."""
        most = (1 << 31) // size
        is_short = reach is not None and -most < reach[0] and reach[1] < most
        is_short = is_short and all(abs(c) < most for _, c in terms)
        # Parts of a short sum may wrap: it fits, and they do not have to.
        times = "mul" if is_short else "mul nsw"
        type = "i32" if is_short else "i64"
        offsets = int_vector([n * size for n in steps], type)
        for atom, c in terms:
            held = self.value(atom)
            if is_short:
                held = self.convert("trunc", held, type)
            scaled = self.binary(times, held, integer(c * size, type))
            offsets = self.binary("add", scaled, offsets)
        return offsets

    def _times(self, v: LlvmValue, c: int) -> LlvmValue:
        if c == 1:
            return v
        return self.binary("mul nsw", v, integer(c))

    def pointer(self, buffer: Buffer, terms: Terms, offset: int) -> LlvmValue:
        """Base plus terms, outer loops first, so that each loop only adds its own terms."""
        key = ("base", buffer, self.guard, terms)
        pointer = self.scopes[-1].values.get(key)
        if pointer is None:
            pointer, info = self._base(buffer, terms)
            self._keep(self.scopes[-1], key, pointer, info)
        if not offset:
            return pointer
        return self.ins(f"getelementptr i8, {pointer.typed}, i64 {offset}", "ptr")

    def _base(self, buffer: Buffer, terms: Terms) -> tuple[LlvmValue, Info]:
        size = buffer.dtype.itemsize
        levels: dict[int, list[tuple[Expr, int]]] = {}
        for atom, c in terms:
            levels.setdefault(self._placement(self.info(atom)), []).append(
                (atom, c * size)
            )
        pointer = self.pointers[buffer]
        done: Terms = ()
        info = depends = PURE
        for level in sorted(levels):
            group = tuple(levels[level])
            done += group
            for atom, _ in group:
                info = info | self.info(atom)
            guard, depends = self.guarded(info)
            pointer = self.cached(
                ("pointer", buffer, guard, done),
                depends,
                partial(self._advance, pointer, group),
            )
        return pointer, depends

    def _advance(self, base: LlvmValue, group: Terms) -> LlvmValue:
        total: LlvmValue | None = None
        before = self.count
        for atom, c in group:
            term = self._times(self.value(atom), c)
            if total is None:
                total = term
            else:
                total = self.binary("add nsw", total, term)
        assert total is not None
        if self.repeating:  # written out, these are constants
            self.spared -= self.count - before
        return self.ins(f"getelementptr i8, {base.typed}, {total.typed}", "ptr")

    def info_of(self, form: Affine) -> Info:
        """Dependences of a linear form."""
        found = PURE
        for atom, _ in form.terms:
            found = found | self.info(atom)
        return found

    def guarded(self, info: Info) -> tuple[Expr | None, Info]:
        """The guard of a risky value, and its dependences including those of the guard."""
        if self.guard is None or not info.risky:
            return None, info
        return self.guard, info | self.info(self.guard)


def address(buffer: Buffer, index: tuple[Expr, ...]) -> Affine:
    """The element offset of an access, in as few terms as possible."""
    if buffer.static:
        return rejoined(_sum(zip(map(affine, index), buffer.strides, strict=True)))
    form, stride = Affine((), 0), Affine((), 1)
    for part, extent in zip(reversed(index), reversed(buffer.extents), strict=True):
        form = affine(part).times(stride) + form
        stride = stride.times(affine(as_expr(extent, INDEX)))
    return rejoined(form)


def _sum(parts: Iterable[tuple[Affine, int]]) -> Affine:
    """The sum of forms, each times a number: one form is made, not one for each step."""
    total: dict[Expr, int] = {}
    const = sum([_add(total, form, factor) for form, factor in parts])
    return _form(total, const)


def _add(total: dict[Expr, int], form: Affine, factor: int) -> int:
    """Add the terms of a form times a number to `total`; returns its constant times the number."""
    for atom, c in form.terms:
        total[atom] = total.get(atom, 0) + c * factor
    return form.const * factor


def _form(total: dict[Expr, int], const: int) -> Affine:
    return Affine(tuple([(a, c) for a, c in total.items() if c]), const)
