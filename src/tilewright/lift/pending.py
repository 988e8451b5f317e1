"""Reductions and scans that are not stages yet, and how a function becomes a combine operator.

A reduction stays open until it is seen what reads it: the result of the program, then it is that
Computation's own `pw` or `ps` dimension; or more arithmetic, then it becomes a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Dim
from tilewright.compute.reducer import Reducer, reducer
from tilewright.expr import nodes as e
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.ir.node import postorder, substitute
from tilewright.lift.views import Array, View, scalar

# The combine operators that one node of an expression says.
OPERATORS: Mapping[type[Expr], str] = {
    e.Add: "add",
    e.Mul: "mul",
    e.Max: "max",
    e.Min: "min",
    e.And: "and",
    e.Or: "or",
    e.Xor: "xor",
}
Env = Mapping[Var, Expr]


@dataclass(eq=False, slots=True)
class DeferredReduction:
    """`values`, combined over `dims` (all pw, or one ps); other variables in them are free."""

    dims: tuple[Dim, ...]
    reducer: Reducer
    values: tuple[Expr, ...]
    make: Callable[[DeferredReduction], tuple[tuple[Var, ...], tuple[Buffer, ...]]]
    stage: tuple[tuple[Var, ...], tuple[Buffer, ...]] | None = field(default=None)

    def force(self) -> tuple[tuple[Var, ...], tuple[Buffer, ...]]:
        """The buffers of the stage that computes it, indexed by those variables."""
        if self.stage is None:
            self.stage = self.make(self)
        return self.stage


@dataclass(frozen=True, eq=False, slots=True)
class PendingReduction:
    """Component `component` of a reduction, its free variables replaced by `env`."""

    core: DeferredReduction
    env: Env
    component: int = 0

    def expr(self) -> Expr:
        """The element of the stage."""
        free, buffers = self.core.force()
        return Load(buffers[self.component], tuple(self.env.get(v, v) for v in free))

    def values(self) -> tuple[Expr, ...]:
        """What is combined, in the variables of the place where it is used."""
        return tuple(substitute(v, {**self.env}) for v in self.core.values)


@dataclass(frozen=True, eq=False, slots=True)
class DeferredOperator:
    """An operator with pending arguments: around a reduction, it may be merged into it."""

    node: type[e.Binary]
    args: tuple[View, ...]

    def expr(self) -> Expr:
        """The operator on the stages' elements."""
        lhs, rhs = map(scalar, self.args)
        return self.node(lhs, rhs)


def moved(view: View, env: Env) -> View:
    """`view` with variables replaced, lazily below arrays."""
    match view:
        case Expr():
            return substitute(view, {**env})
        case tuple():
            return tuple(moved(v, env) for v in view)
        case Array():
            rows = view.rows
            return Array(
                view.length,
                lambda i: moved(view.at(i), env),
                None if rows is None else moved(rows, env),
                tuple(moved(p, env) for p in view.parts),
            )
        case PendingReduction(core, old, component):
            new = {v: substitute(x, {**env}) for v, x in old.items()}
            return PendingReduction(core, {**env, **new}, component)
        case DeferredOperator(node, args):
            return DeferredOperator(node, tuple(moved(a, env) for a in args))
    raise TypeError(type(view).__name__)


def step_of(
    result: View, acc: Load, accumulators: frozenset[Buffer]
) -> tuple[Reducer, View] | None:
    """The operator and the operand v where the result of one step is `acc (op) v`, else None.

    v reads none of the accumulators (of a tuple there are several); it may be pending, so that a
    reduction of reductions is one.
    """
    if isinstance(result, DeferredOperator):
        node = result.node
        lhs, rhs = result.args
    elif isinstance(result, e.Binary):
        node = type(result)
        lhs = result.lhs
        rhs = result.rhs
    else:
        return None
    if rhs is acc:
        lhs, rhs = rhs, lhs
    if lhs is not acc or node not in OPERATORS or _reads(rhs, accumulators):
        return None
    return reducer(OPERATORS[node], acc.dtype), rhs


def _reads(view: View, buffers: frozenset[Buffer]) -> bool:
    roots: Sequence[Expr] = (
        view.values() if isinstance(view, PendingReduction) else (scalar(view),)
    )
    return any(
        isinstance(x, Load) and x.buffer in buffers for r in roots for x in postorder(r)
    )
