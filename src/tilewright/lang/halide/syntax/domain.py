"""Var, RVar, RDom: the coordinates of Funcs and of reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from tilewright.base import dtypes
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.expr.nodes import INDEX
from tilewright.lang.halide.syntax.absent import ABSENT, absent
from tilewright.lang.halide.syntax.expr import Expr, constant, unique

_VARS: WeakValueDictionary[str, nodes.Var] = WeakValueDictionary()
_DOMAINS: WeakKeyDictionary[nodes.Var, RDom] = WeakKeyDictionary()


class Var(Expr):
    """A coordinate. Two Vars of one name are the same, as in Halide."""

    __slots__ = ("_name",)

    def __init__(self, name: str | None = None) -> None:
        self._name = name or unique("v")
        node = _VARS.get(self._name)
        if node is None:
            node = _VARS[self._name] = nodes.Var(self._name, INDEX)
        super().__init__(node, dtypes.int32)

    def name(self) -> str:
        """The name."""
        return self._name

    def same_as(self, other: Var) -> bool:
        """Whether it is the same coordinate as another."""
        return self._name == other._name

    @staticmethod
    def implicit(n: int) -> Var:
        """The Var for the n-th dimension of `_`."""
        return Var(f"_{n}")

    def is_implicit(self) -> bool:
        """Whether it is one of the Vars that `_` expands to."""
        return self._name[:1] == "_" and self._name[1:].isdigit()

    def implicit_index(self) -> int:
        """Its number among the Vars that `_` expands to; -1: none."""
        return int(self._name[1:]) if self.is_implicit() else -1

    def is_placeholder(self) -> bool:
        """Whether it is `_`, the placeholder for all unnamed dimensions."""
        return self._name == "_"

    __getattr__ = absent("Var")


class RVar(Expr):
    """A coordinate of a reduction domain: runs over `min .. min + extent - 1`.

    `RVar("ro")`, without a range, names a loop that a split or fuse makes.
    """

    __slots__ = ("_name", "extent", "min")

    def __init__(
        self,
        name: str | None = None,
        min: int = 0,
        extent: int = 0,
    ) -> None:
        self._name = name or unique("r")
        self.min = min
        self.extent = extent
        super().__init__(nodes.Var(self._name, INDEX), dtypes.int32)

    def name(self) -> str:
        """The name: `<domain>.x` and so on."""
        return self._name


class Range:
    """A (min, extent), as RDom and set_estimates take them; it can be unpacked."""

    def __init__(self, min: Any = 0, extent: Any = 0) -> None:
        pair = min if isinstance(min, tuple) else (min, extent)
        self.min, self.extent = pair

    def __iter__(self) -> Iterator[Any]:
        return iter((self.min, self.extent))

    def __repr__(self) -> str:
        return f"Range({self.min}, {self.extent})"


_AXES = "xyzw"


class RDom(Expr):
    """A box to reduce over, in the order of its dimensions, the first innermost.

    ranges: a list of constant (min, extent), or an object with `dimensions()` and `dim(n)` (an
    image or Buffer of known size); names: of its variables (default: `<name>.x`, `.y`, ...).
    `where(condition)` excludes points. An RDom of one dimension can be used as its variable.
    """

    def __init__(
        self, ranges: Any, name: str | None = None, names: Sequence[str] | None = None
    ) -> None:
        self.name = name or unique("r")
        pairs = _ranges(ranges)
        names = names or [f"{self.name}.{_axis(n)}" for n in range(len(pairs))]
        if not pairs:
            raise InputError(
                "an RDom has at least one dimension", where=f"RDom {self.name}"
            )
        self.vars = tuple(
            RVar(name, low, extent)
            for name, (low, extent) in zip(names, pairs, strict=True)
        )
        self.conditions: tuple[Expr, ...] = ()
        self._type = dtypes.int32
        for v in self.vars:
            assert isinstance(v.node, nodes.Var)
            _DOMAINS[v.node] = self

    @property
    def node(self) -> nodes.Expr:
        """The variable of an RDom of one dimension. Raises InputError for more."""
        if len(self.vars) > 1:
            raise InputError(
                f"it has {len(self.vars)} dimensions",
                where=f"RDom {self.name}",
                hint="r.x, r.y",
            )
        return self.vars[0].node

    def where(self, condition: Expr) -> None:
        """Only the points where `condition` holds; several conditions all must."""
        self.conditions += (condition,)

    def under(self, conditions: Sequence[Expr]) -> RDom:
        """The same variables under these conditions instead."""
        made = copy(self)
        made.conditions = tuple(conditions)
        return made

    def dimensions(self) -> int:
        """Number of dimensions."""
        return len(self.vars)

    def same_as(self, other: RDom) -> bool:
        """Whether it has the variables of another."""
        return self.vars == other.vars

    def __getitem__(self, n: int) -> RVar:
        return self.vars[n]

    def __getattr__(self, name: str) -> Any:
        at = _AXES.find(name) if len(name) == 1 else -1
        if name in ABSENT["RDom"]:
            return absent("RDom")(self, name)
        if at < 0 or at >= len(self.__dict__.get("vars", ())):
            raise AttributeError(f"an RDom of this size has no {name!r}")
        found: RVar = self.vars[at]
        return found


def _axis(n: int) -> str:
    if n < len(_AXES):
        return _AXES[n]
    return f"d{n}"


def _ranges(ranges: Any) -> list[tuple[int, int]]:
    if hasattr(ranges, "dimensions"):
        dims = [ranges.dim(n) for n in range(ranges.dimensions())]
        return [(constant(d.min()), constant(d.extent())) for d in dims]
    return [(constant(low), constant(extent)) for low, extent in ranges]


def domain_of(node: nodes.Var) -> RDom | None:
    """The RDom a variable belongs to; None for a Var."""
    return _DOMAINS.get(node)
