"""Func: a function over Vars, given by a pure definition and any number of updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr import nodes
from tilewright.ir.node import postorder
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.domain import RDom, Var, domain_of
from tilewright.lang.halide.syntax.expr import (
    Expr,
    as_expr,
    as_index,
    as_value,
    cast_to,
    divided,
    spread,
    unique,
)
from tilewright.lang.halide.syntax.image import Symbol, last_coordinate
from tilewright.lang.halide.syntax.printer import show, text
from tilewright.lang.halide.syntax.random import drawn
from tilewright.lang.halide.syntax.scatter import is_gathered
from tilewright.lang.halide.syntax.told import DefinitionQueries
from tilewright.lang.halide.syntax.types import Type
from tilewright.lang.halide.syntax.values import Tuple, Undef


@dataclass(frozen=True, eq=False, slots=True)
class _Step:
    """The right side of `f[...] += value`."""

    op: str
    value: Expr


def _declaration(
    declared: Sequence[Any],
) -> tuple[str, tuple[list[Type] | None, int]]:
    """The name, and the types and number of dimensions that a definition must have (-1: any)."""
    if len(declared) > 1:
        types, dimensions, *named = declared
        found = list(types) if isinstance(types, list | tuple) else [types]
        return (*named, unique("f"))[0], (found, dimensions)
    given = declared[0] if declared else None
    return given if isinstance(given, str) else unique("f"), (None, -1)


_START = {"add": 0, "sub": 0, "mul": 1, "div": 1}


class FuncRef(Expr):
    """`f[args]`: a value on a right side, a place on a left side."""

    __slots__ = ("args", "func")

    def __init__(self, func: Func, args: tuple[Expr, ...]) -> None:
        self.func, self.args = func, args

    @property
    def node(self) -> nodes.Expr:
        """The element. Raises InputError where the Func is not defined yet or has several."""
        if len(self.func.symbols) == 1:
            return self[0].node
        problem = (
            f"has {len(self.func.symbols)} values"
            if self.func.symbols
            else "is not defined"
        )
        raise InputError(
            f"{self.func.name()} {problem}",
            where=f"Func {self.func.name()}",
            hint="choose one: f[x][0]"
            if self.func.symbols
            else "define it first: f[x, y] = ...",
        )

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""
        return self.node.dtype

    def __getitem__(self, n: int) -> Expr:
        symbol = self.func.symbols[n]
        point = tuple(as_index(a) for a in reversed(self.args))
        return Expr(nodes.Load(symbol, point), symbol.dtype)

    def __len__(self) -> int:
        return len(self.func.symbols)

    def size(self) -> int:
        """The number of values."""
        return len(self)

    def __iadd__(self, other: Any) -> Any:
        return _Step("add", as_expr(other))

    def __isub__(self, other: Any) -> Any:
        return _Step("sub", as_expr(other))

    def __imul__(self, other: Any) -> Any:
        return _Step("mul", as_expr(other))

    def __itruediv__(self, other: Any) -> Any:
        return _Step("div", as_expr(other))


class Func(DefinitionQueries):
    """A function over Vars.

    `f[x, y] = e` defines it (all arguments Vars, once each); a second definition, or `+=`, updates
    it. `f[x, y]` in an expression is its value there. Raises InputError for definitions that Halide
    rejects. declared: a name; a type (or a list of them), a number of dimensions and a name, which
    its definition must have; or an Expr, which defines it without dimensions.
    """

    def __init__(self, *declared: Any) -> None:
        self._name, self._declared = _declaration(declared)
        self.args: tuple[Var, ...] = ()
        self.definitions: list[Definition] = []
        self.symbols: tuple[Symbol, ...] = ()
        self.promised: dict[str, tuple[int | None, int]] = {}
        self.estimates: dict[str, tuple[int, int]] = {}
        self.output_promises: dict[int, tuple[int | None, int | None]] = {}
        self.strides: dict[int, int] = {}  # promised, where it is an output
        self.traced: set[str] = set()
        self.aligned: dict[str, tuple[int, int | None]] = {}
        self.instead: dict[Symbol, Symbol] = {}
        if len(declared) == 1 and isinstance(declared[0], Expr):
            self[()] = declared[0]

    def name(self) -> str:
        """The name."""
        return self._name

    def defined(self) -> bool:
        """Whether there is a pure definition."""
        return bool(self.definitions)

    def num_update_definitions(self) -> int:
        """The number of updates."""
        return max(0, len(self.definitions) - 1)

    def has_update_definition(self) -> bool:
        """Whether there is an update."""
        return len(self.definitions) > 1

    def outputs(self) -> int:
        """The number of values."""
        return len(self.symbols)

    def types(self) -> list[Type]:
        """The type of each value."""
        return [Type(s.dtype) for s in self.symbols]

    def dimensions(self) -> int:
        """Number of dimensions."""
        return len(self.args)

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) value."""
        return self.symbols[0].dtype

    def type(self) -> Type:
        """The type of the (first) value."""
        return Type(self.dtype)

    def _ref(self, index: Any) -> tuple[Expr, ...]:
        given = index if isinstance(index, tuple | list) else (index,)
        args = tuple(map(as_expr, given))
        if self.defined():
            args = spread(args, self.dimensions(), Var.implicit)
        if self.defined() and len(args) != self.dimensions():
            raise InputError(
                f"it has {self.dimensions()} dimensions, indexed with {len(args)}",
                where=f"Func {self._name}",
            )
        return args

    def __getitem__(self, index: Any) -> FuncRef:
        return FuncRef(self, self._ref(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        args = self._ref(index)
        if isinstance(value, _Step):
            self._step(args, value)
            return
        several = value if isinstance(value, Tuple) else None
        if isinstance(value, list | tuple):
            several = Tuple(*value)
        if isinstance(value, FuncRef) and len(value) > 1:
            several = Tuple(*(value[n] for n in range(len(value))))
        values = several.values if several is not None else (as_expr(value),)
        if not self.defined():
            args = spread(args, len(args) - 1 + _implicit(values), Var.implicit)
        if self.defined():
            self._check_unread()
            self._update(args, values)
        else:
            self._define(
                args,
                tuple(
                    cast_to(0, v.dtype) if isinstance(v, Undef) else v for v in values
                ),
            )

    def _check_unread(self) -> None:
        """An update may not change what another Func has read: definitions would go in circles."""
        readers = [r.name() for s in self.symbols for r in s.readers if r is not self]
        if readers:
            raise InputError(
                f"it is updated after {readers[0]} was defined by it",
                where=f"Func {self._name}",
                hint=f"give all updates of {self._name} before the definition of {readers[0]}",
            )

    def _define(self, args: tuple[Expr, ...], values: tuple[Expr, ...]) -> None:
        named = {a.name() for a in args if isinstance(a, Var)}
        if len(named) != len(args):
            raise InputError(
                f"the arguments of its first definition are {', '.join(map(repr, args))}",
                where=f"Func {self._name}",
                hint="a pure definition takes different Vars; update it afterwards",
            )
        if is_gathered([a.node for a in (*args, *values)]):
            raise InputError(
                "a scatter or gather in its pure definition",
                where=f"Func {self._name}",
                hint="define it first, and then update it by them",
            )
        self._check_declared(args, values)
        self.args = tuple(a for a in args if isinstance(a, Var))
        self.symbols = self._named([v.dtype for v in values])
        found = Definition(
            tuple(a.node for a in reversed(args)),
            tuple(drawn(as_value(v), 0, [a.node for a in args]) for v in values),
        )
        self._check_bound(found, named)
        self.keep(found)

    def _named(self, dtypes: Sequence[DType]) -> tuple[Symbol, ...]:
        """What its values are in expressions."""
        names = [self._name]
        if len(dtypes) > 1:
            names = [f"{self._name}.{n}" for n in range(len(dtypes))]
        rank = len(self.args)
        return tuple(
            Symbol(name, rank, dtype, self)
            for name, dtype in zip(names, dtypes, strict=True)
        )

    def _check_declared(self, args: Sequence[Any], values: Sequence[Expr]) -> None:
        types, dimensions = self._declared
        found = [Type(v.dtype) for v in values]
        if types is not None and (found != types or dimensions not in (-1, len(args))):
            raise InputError(
                f"it is defined with {len(args)} dimensions and the types "
                f"{', '.join(map(str, found))}",
                where=f"Func {self._name}",
                hint=f"{dimensions} dimensions of {', '.join(map(str, types))} were declared",
            )

    def keep(self, found: Definition, n: int | None = None) -> None:
        """Add a definition, or put it in the place of definition n."""
        made = found.reading(self._read_for)
        for symbol in made.symbols():
            symbol.readers[self] = None
        if n is None:
            self.definitions.append(made)
        else:
            self.definitions[n] = made

    @property
    def is_whole(self) -> bool:
        """Whether its whole required region is computed in one place."""
        return True

    def conditions(self) -> list[Expr]:
        """What decides between its schedules."""
        return []

    def read_again(self) -> None:
        """Read what `instead` says now in all definitions."""
        for n, definition in enumerate(self.definitions):
            self.keep(definition, n)

    def reads(self, symbols: Sequence[Symbol]) -> bool:
        """Whether some definition reads one of these symbols."""
        return any(s in symbols for d in self.definitions for s in d.symbols())

    def _read_for(self, symbol: Symbol) -> Symbol:
        """The symbol that this Func reads for another one: its wrapper, if there is one."""
        while symbol.owner is not self:
            found = self.instead.get(symbol, symbol.instead)
            if found is None or found is symbol:
                break
            symbol = found
        return symbol

    def _check_bound(self, found: Definition, named: set[str]) -> None:
        for root in found.roots:
            for node in postorder(root):
                if isinstance(node, nodes.Var) and node.name not in named:
                    if last_coordinate(node) is not None:
                        continue
                    if domain_of(node) is None or found.domain is None:
                        raise InputError(
                            f"{node.name} is used on the right side, but is not an argument",
                            where=f"Func {self._name}",
                            hint=f"its arguments are {', '.join(sorted(named)) or '(none)'}",
                        )

    def _step(self, args: tuple[Expr, ...], step: _Step) -> None:
        if not self.defined():
            start = cast_to(_START[step.op], step.value.dtype)
            fresh = tuple(a if isinstance(a, Var) else Var() for a in args)
            self._define(fresh, (start,))
        self._check_unread()
        ref = FuncRef(self, args)[0]
        value = cast_to(step.value, self.dtype)
        if step.op in ("add", "mul"):
            self._update(args, (value,), step.op)
        elif step.op == "sub" and self.dtype.is_float:
            self._update(args, (-value,), "add")
        else:
            whole = ref - value if step.op == "sub" else divided(ref, value)
            self._update(args, (cast_to(whole, self.dtype),))

    def _update(
        self, args: tuple[Expr, ...], values: Sequence[Expr], op: str | None = None
    ) -> None:
        if len(values) != len(self.symbols):
            raise InputError(
                f"it has {len(self.symbols)} values, updated with {len(values)}",
                where=f"Func {self._name}",
            )
        place = tuple(as_index(a) for a in reversed(args))
        parts = tuple(
            as_value(cast_to(v, s.dtype))
            for v, s in zip(values, self.symbols, strict=True)
        )
        combine = None if op is None else reducer(op, self.dtype)
        if is_gathered((*place, *parts)):
            if combine is not None:
                own = tuple(nodes.Load(s, place) for s in self.symbols)
                parts, combine = combine.combine(own, parts), None
        elif op is None and len(parts) == 1:
            combine, parts = _recognized(self.symbols[0], place, parts[0])
        self.add_update(place, parts, combine)

    def add_update(
        self,
        place: tuple[nodes.Expr, ...],
        values: tuple[nodes.Expr, ...],
        combine: Reducer | None,
        domain: RDom | None = None,
    ) -> None:
        """An update by a reducer, or (None) by plain stores; `place` in NumPy's order.

        domain: the RDom to reduce over; None: the one that is used, if any.
        """
        if combine is not None and any(
            _reads(v, self.symbols) for v in (*values, *place)
        ):
            raise InputError(
                "the value that an update combines also reads the Func",
                where=f"Func {self._name}",
                hint="write the whole right side: f[x] = f[x] + ...",
            )
        self._check_own_reads(place, values)
        domain = self._domain((*place, *values)) if domain is None else domain
        values = tuple(self._drawn(v, domain) for v in values)
        definition = Definition(place, values, domain, combine)
        self._check_bound(definition, {a.name() for a in self.args})
        self.keep(definition)

    def _check_own_reads(
        self, place: tuple[nodes.Expr, ...], values: tuple[nodes.Expr, ...]
    ) -> None:
        """An update reads the Func with the same Vars in the same places as it writes it."""
        pure = [
            a if a is v.node else None
            for a, v in zip(place, reversed(self.args), strict=True)
        ]
        for root in (*place, *values):
            for node in postorder(root):
                if isinstance(node, nodes.Load) and node.buffer in self.symbols:
                    if any(
                        p is not None and p is not i for p, i in zip(pure, node.index)
                    ):
                        raise InputError(
                            f"an update reads {text(node)}, with other Vars than it writes",
                            where=f"Func {self._name}",
                            hint="use an RDom: its points are visited in order",
                        )

    def _drawn(self, value: nodes.Expr, domain: RDom | None) -> nodes.Expr:
        """A value of an update with its random numbers, which depend on all its coordinates."""
        reduced = () if domain is None else tuple(v.node for v in domain.vars)
        point = (*(v.node for v in self.args), *reduced)
        return drawn(value, len(self.definitions), point)

    def _domain(self, roots: Sequence[nodes.Expr]) -> RDom | None:
        used = [n for r in roots for n in postorder(r) if isinstance(n, nodes.Var)]
        domains = {d for d in map(domain_of, used) if d is not None}
        if len(domains) > 1:
            raise InputError(
                f"one update uses {len(domains)} reduction domains",
                where=f"Func {self._name}",
                hint="make one RDom of all their dimensions",
            )
        return next(iter(domains), None)

    def __repr__(self) -> str:
        return show(self)


_OPERATORS: dict[type[nodes.Expr], str] = {
    nodes.Add: "add",
    nodes.Mul: "mul",
    nodes.Min: "min",
    nodes.Max: "max",
    nodes.And: "and",
    nodes.Or: "or",
    nodes.Xor: "xor",
}


def _recognized(
    symbol: Symbol, place: tuple[nodes.Expr, ...], value: nodes.Expr
) -> tuple[Reducer | None, tuple[nodes.Expr, ...]]:
    """`f[p] op e`, e without f, as a step of the associative operator; else the plain store."""
    op = _OPERATORS.get(type(value))
    if op is not None and isinstance(value, nodes.Binary):
        own = nodes.Load(symbol, place)
        for mine, other in ((value.lhs, value.rhs), (value.rhs, value.lhs)):
            if mine is own and not _reads(other, (symbol,)):
                return reducer(op, symbol.dtype), (other,)
    return None, (value,)


def _implicit(values: Sequence[Expr]) -> int:
    """The number of dimensions that `_` expands to in values."""
    free = (n for v in values if not isinstance(v, Undef) for n in postorder(v.node))
    named = (Var(n.name) for n in free if isinstance(n, nodes.Var))
    return max((v.implicit_index() for v in named), default=-1) + 1


def _reads(root: nodes.Expr, symbols: Sequence[Symbol]) -> bool:
    return any(
        isinstance(n, nodes.Load) and n.buffer in symbols for n in postorder(root)
    )
