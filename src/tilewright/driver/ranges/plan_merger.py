"""Merges several plans: corresponding nodes become one node of the open plan.

Nodes that only differ in numbers are merged, with a function of the sizes for each number
(`size_terms`). If something is absent for some sizes, it is taken from the others:

    a read beyond an end      its condition, where no window reaches beyond at some sizes
    a sum                     one of its numbers, where it is 0
    any other expression      what is computed, where bounds decide it at some sizes

All of this is a guess: `generalize.equal` decides whether plans are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import reduce
from operator import add, mul
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.base.names import fresh
from tilewright.base.text import plural
from tilewright.compute.guards import Ranges, conjuncts, inside, keeps_inside, loads
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.reducer import Reducer
from tilewright.compute.transforms import environment
from tilewright.driver.ranges.refusals import Extents, at_sizes, differs
from tilewright.driver.ranges.size_products import (
    Factors,
    SizeProduct,
    SizeSum,
    are_told,
    times_each,
)
from tilewright.driver.ranges.size_terms import Basis
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Cast,
    Const,
    Expr,
    Extent,
    Select,
    Var,
)
from tilewright.ir.node import Node, postorder
from tilewright.loops.nodes import For, Kernel, Stmt, for_sizes
from tilewright.plan.nodes import FusionGroup

# The least number of plans that must have what others lack.
ENOUGH: Final = 3
# Marks a plan that lacks what others have at a place.
ABSENT: Final[Any] = object()


def _of(node: Any, name: str) -> Any:
    """A field of a node, or of an absent one."""
    return node if node is ABSENT else getattr(node, name)


@dataclass(eq=False, slots=True)
class PlanMerger:
    """Merges several plans. sizes: the variables of the open plan, by name. products: that numbers
    may have as summands. shown: the points of the basis, as errors show them.

    A place is a tuple of each plan's node or value there; ABSENT for a plan that lacks it.
    """

    basis: Basis
    sizes: Mapping[str, Var]
    products: Mapping[SizeProduct, Factors] = field(default_factory=dict)
    where: str = ""
    shown: Sequence[Extents] = ()
    _known: dict[Any, Any] = field(default_factory=dict)
    _buffers: dict[tuple[int, Buffer], Buffer] = field(default_factory=dict)
    _variables: dict[tuple[int, Var], Var] = field(default_factory=dict)
    _counts: dict[tuple[Any, ...], Expr] = field(default_factory=dict)
    _sums: dict[tuple[int, ...], SizeSum] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _ranges: tuple[Ranges, ...] = ()
    _range: Ranges = field(default_factory=dict)

    def step(self, steps: tuple[Any, ...]) -> FusionGroup:
        """One group of the open plan. Raises UnsupportedError naming it."""
        first: FusionGroup = steps[0]
        self.where = f"step {first.name}"
        if not all(isinstance(s, FusionGroup) for s in steps):
            raise differs(self.where, "it is not a kernel on the host")
        self._require({s.kernel is None for s in steps}, "whether it is a loop program")
        if first.kernel is not None:
            return replace(first, kernel=self._kernel([s.kernel for s in steps]))
        self._require(
            {len(s.computations) for s in steps}, "the number of Computations"
        )
        places = zip(*(s.computations for s in steps), strict=True)
        return replace(first, computations=tuple(map(self._computation, places)))

    def _kernel(self, found: Sequence[Kernel]) -> Kernel:
        """One Kernel for all sizes; the notes on loops are those of the first kernel."""
        first = found[0]
        self._require({len(k.params) for k in found}, "the number of tensors")
        by_place = zip(*(k.params for k in found), strict=True)
        known = dict(zip(first.params, map(self.buffer, by_place), strict=True))
        body: Stmt = self._expr(tuple(k.body for k in found))
        return replace(
            first,
            params=tuple(known.values()),
            outputs=tuple(known[b] for b in first.outputs),
            body=for_sizes(self.sizes.values(), body),
        )

    def _computation(self, found: tuple[Computation, ...]) -> Computation:
        first = found[0]
        what = "the form of its loops"
        self._require({tuple(d.combine for d in c.dims) for c in found}, what)
        self._require({len(c.outputs) for c in found}, what)
        dims = []
        for ds in zip(*(c.dims for c in found), strict=True):
            self._name([d.var for d in ds])
            dims.append(replace(ds[0], size=self._extent(tuple(d.extent for d in ds))))
        self._ranges = tuple(environment(c.dims) for c in found)
        self._range = environment(dims)
        outputs = []
        for os in zip(*(c.outputs for c in found), strict=True):
            index = tuple(map(self._expr, zip(*(o.index for o in os), strict=True)))
            tensor = self.buffer(tuple(o.tensor for o in os))
            value = self._expr(tuple(o.value for o in os))
            outputs.append(Output(tensor, index, value))
        return replace(first, dims=tuple(dims), outputs=tuple(outputs))

    def _name(self, found: Sequence[Any]) -> None:
        """Map the variables of corresponding loops to the first plan's."""
        first = next(v for v in found if v is not ABSENT)
        for n, v in enumerate(found):
            if v is not ABSENT:
                self._variables[n, v] = first

    def name(self, b: Buffer) -> str:
        """The name of a new buffer of the open plan, for one of another plan."""
        return fresh(self._names, b.name)

    def put(self, found: Sequence[Buffer], b: Buffer) -> None:
        """Set the buffer for a place."""
        self._buffers |= dict.fromkeys(enumerate(found), b)

    def buffer(self, found: tuple[Any, ...]) -> Buffer:
        """The buffer of the open plan at a place."""
        places = ((n, b) for n, b in enumerate(found) if b is not ABSENT)
        known = set(map(self._buffers.get, places))
        if known == {None} and ABSENT not in found:
            made = self._opened(found)
            self.put(found, made)
            return made
        (b, *others) = known
        if others or b is None:
            raise differs(self.where, "a tensor depends on a size")
        return b

    def _opened(self, found: tuple[Buffer, ...]) -> Buffer:
        self._require({(b.dtype, b.scope, len(b.extents)) for b in found}, "a tensor")
        places = zip(*(b.shape for b in found), strict=True)
        b = found[0]
        shape = tuple(map(self._extent, places))
        return Buffer(self.name(b), shape, b.dtype, b.scope)

    def _extent(self, found: tuple[int, ...]) -> Extent:
        count = self._count(found)
        return int(count.value.real) if isinstance(count, Const) else count

    def _expr(self, found: tuple[Any, ...]) -> Any:
        """One node, or field of one, for the same place in all plans."""
        if not any(isinstance(n, Node) for n in found):
            return self._alike(found)
        if found not in self._known:
            try:
                self._known[found] = self._made(found)
            except UnsupportedError as error:
                self._known[found] = error
        made = self._known[found]
        if isinstance(made, UnsupportedError):
            raise made
        return made

    def _made(self, found: tuple[Any, ...]) -> Any:
        kinds = {type(n) for n in found if n is not ABSENT}
        made = self._guarded(found) if Select in kinds else None
        if made is None:
            made = self._sum(found)
        if made is not None:
            return made
        if len(kinds) > 1:
            return self._alike(self._longest(found))
        try:
            return self._alike(found)
        except UnsupportedError:
            longest = self._longest(found)
            if longest == found:
                raise
            return self._expr(longest)

    def _alike(self, found: tuple[Any, ...]) -> Any:
        """The merged node of nodes of one kind, some of which may be absent."""
        first = next(n for n in found if n is not ABSENT)
        match first:
            case Buffer():
                return self.buffer(found)
            case Const():
                return self._const(found)
            case Var():
                return self._variable(found)
            case For():
                self._name([_of(f, "var") for f in found])
            case Reducer():
                return first
            case tuple():
                return self._each(found)
        if not isinstance(first, Node):
            self._require({n for n in found if n is not ABSENT}, "an expression")
            return first
        fields = (tuple(_of(n, f) for n in found) for f in first._fields)
        return type(first)(*map(self._expr, fields))

    def _each(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        counts = {len(n) for n in found if n is not ABSENT}
        self._require(counts, "an expression")
        places = (
            tuple(n if n is ABSENT else n[k] for n in found) for k in range(*counts)
        )
        return tuple(map(self._expr, places))

    def _variable(self, found: tuple[Any, ...]) -> Var:
        names = {
            self._variables.get((n, v)) for n, v in enumerate(found) if v is not ABSENT
        }
        (v, *others) = names
        if others or v is None:
            raise differs(self.where, f"the variable {found[0]}")
        return v

    def _guarded(self, found: tuple[Any, ...]) -> Expr | None:
        """Reads, guarded at those ends that windows exceed at some size; None if the guards are the
        same at all sizes, or different ones."""
        selects = [n for n in found if isinstance(n, Select)]
        counts = {len(conjuncts(s.condition)) for s in selects}
        outside = {s.otherwise for s in selects}
        all_are = all(n is ABSENT or isinstance(n, Select) for n in found)
        if (all_are and len(counts) == 1) or len(outside) > 1:
            return None
        pairs = zip(found, self._ranges, strict=False)
        if not all(keeps_inside(n, r) for n, r in pairs if isinstance(n, Select)):
            return None
        then = self._expr(tuple(n.then if isinstance(n, Select) else n for n in found))
        known = (c for load in loads(then) for c in inside(load, self._range))
        return Select(reduce(And, dict.fromkeys(known)), then, *outside)

    def _sum(self, found: tuple[Any, ...]) -> Expr | None:
        """A sum whose constant is 0 at some sizes; None for other differences."""
        known = [n for n in found if n is not ABSENT]
        if not all(isinstance(n, Expr) and n.dtype is INDEX for n in known):
            return None
        forms = [n if n is ABSENT else affine(n) for n in found]
        numbers = {form.const != 0 for form in forms if form is not ABSENT}
        factors = {
            tuple(c for _, c in form.terms) for form in forms if form is not ABSENT
        }
        if len(numbers) == 1 or len(factors) > 1:
            return None
        (each,) = factors
        terms = [
            (self._expr(tuple(f if f is ABSENT else f.terms[k][0] for f in forms)), c)
            for k, c in enumerate(each)
        ]
        number = self._count(tuple(_of(form, "const") for form in forms))
        return to_expr(Affine(tuple(terms), 0) + affine(number))

    def _longest(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """The longest of the expressions, with all others absent; for statements, all of them."""
        known = [n for n in found if n is not ABSENT]
        if not all(isinstance(n, Expr) for n in known):
            self._require({type(n) for n in known}, "an expression")
            return found
        self._require({n.dtype for n in known}, "a type")
        lengths = {n: sum(1 for _ in postorder(n)) for n in known}
        longest = max(known, key=lengths.__getitem__)
        form = type(longest), lengths[longest]
        return tuple(
            n if n is not ABSENT and (type(n), lengths[n]) == form else ABSENT
            for n in found
        )

    def _const(self, found: tuple[Any, ...]) -> Expr:
        known = [n for n in found if n is not ABSENT]
        first = known[0]
        if first.type is not INDEX and all(n is first for n in known):
            return first  # type: ignore[no-any-return]
        values = [n if n is ABSENT else complex(n.value) for n in found]
        if any(v.imag or not v.real.is_integer() for v in values if v is not ABSENT):
            raise differs(self.where, f"the constant {first.value} depends on a size")
        count = self._count(tuple(v if v is ABSENT else int(v.real) for v in values))
        return count if first.type is INDEX else Cast(count, first.type)

    def _count(self, found: tuple[Any, ...]) -> Expr:
        """A number, such as a mean's divisor: a sum of terms, a product of sums, or a sum of such
        products."""
        if found not in self._counts:
            self._counts[found] = self._counted(found)
        return self._counts[found]

    def _counted(self, found: tuple[Any, ...]) -> Expr:
        if len(set(found)) == 1:
            return to_expr(Affine((), found[0]))
        whole = self._whole(found)
        factors = self.basis.factors(whole)
        if factors is None:
            raise self._refused(whole, "is not a sum of sizes")
        points = self.basis.points
        form = SizeSum.through(factors, points[0], whole[0])
        if not form.is_told_from_products(points):
            raise self._refused(
                whole, "may be a sum or a product: at no compared size, both change it"
            )
        if all(form.at(p) == n for p, n in zip(points, whole, strict=True)):
            self._sums[whole] = form
            return self._expr_of(form)
        parts = form.by_size(points[0])
        factor = whole[0] // (math.prod(p.at(points[0]) for p in parts) or 1)
        products = (factor * math.prod(p.at(point) for p in parts) for point in points)
        if tuple(products) != whole:
            return self._sum_of_products(form, whole)
        made = reduce(mul, map(self._expr_of, parts))
        return made if factor == 1 else made * factor

    def _sum_of_products(self, form: SizeSum, whole: tuple[int, ...]) -> Expr:
        """A number that is not the sum along each size, by the products that occur in tensors.

        With m and n for a and b at the start, the change of a * b is n times the change of a, m
        times that of b, and their product: the sum along each size has the first two.
        """
        points = self.basis.points
        rest = [n - form.at(p) for p, n in zip(points, whole, strict=True)]
        known = [p for p in self.products if set(p.sizes) <= form.sizes]
        found = times_each(known, points, rest)
        if found is None or not are_told(known, points):
            raise self._refused(whole, "is not a sum of products of two sizes")
        made = []
        for product, times in found.items():
            a, b = self.products[product]
            m = a.at(points[0])
            n = b.at(points[0])
            form = form.plus(a, -times * n).plus(b, -times * m, times * m * n)
            made.append(self._expr_of(a) * self._expr_of(b) * times)
        return reduce(add, made, self._expr_of(form))

    def _whole(self, found: tuple[Any, ...]) -> tuple[int, ...]:
        """The numbers of all plans from those of some: at a constant distance from a known sum, as
        a tensor's last index is from its extent."""
        if ABSENT not in found:
            return found
        some = [(k, n) for k, n in enumerate(found) if n is not ABSENT]
        if len(some) < ENOUGH:
            what = f"a number that {plural(len(some), 'plan')} have depends on a size"
            raise differs(self.where, what)
        if len({n for _, n in some}) == 1:
            return (some[0][1],) * len(found)
        for numbers in reversed(self._sums):
            (away, *others) = {n - numbers[k] for k, n in some}
            if not others:
                return tuple(n + away for n in numbers)
        raise self._refused(found, "is not an extent and a number")

    def _refused(self, found: Sequence[Any], what: str) -> UnsupportedError:
        """The error for a number that is none of these functions of the sizes."""
        pairs = zip(found, self.shown or self.basis.points, strict=False)
        some = [(n, point) for n, point in pairs if n is not ABSENT]
        values = at_sizes([n for n, _ in some], [point for _, point in some])
        return differs(self.where, f"a number that is {values} {what}")

    def _expr_of(self, form: SizeSum) -> Expr:
        terms = ((t.expr(self.sizes[t.size]), c) for t, c in form.factors.items())
        return to_expr(Affine(tuple(terms), form.constant))

    def _require(self, found: set[Any], what: str) -> None:
        if len(found) > 1:
            raise differs(self.where, f"{what} depends on a size")
