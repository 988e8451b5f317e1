"""Terms as views: what pattern functions (codegen.py, folds.py) call one another through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Const, Expr, Load, const
from tilewright.ir.node import postorder
from tilewright.lift import nodes as n
from tilewright.lift.code import KernelWriter
from tilewright.lift.infer import Scope as Types
from tilewright.lift.infer import arguments_of_body, result, type_of, unpacked
from tilewright.lift.producer import (
    ProducedValue,
    TypedValue,
    inverse_of_all,
    invertible,
)
from tilewright.lift.types import Array as ArrayType
from tilewright.lift.types import Scalar, Type
from tilewright.lift.views import LAYOUT, Array, Reads, View, number


@dataclass(frozen=True, slots=True)
class TranslationScope:
    """The parameters in sight with their types; `known` are the terms evaluated with them."""

    env: Mapping[n.Param, View]
    types: Types
    known: dict[n.Term, TypedValue] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Translator:
    """Terms to views; what takes statements is Produced.

    patterns: the translation of each; in_place: reductions accumulate where their result belongs.
    """

    code: KernelWriter
    patterns: Mapping[type[n.Fun], Callable[[PatternUse], View]]
    in_place: bool = False

    def value(self, term: n.Term, scope: TranslationScope) -> TypedValue:
        """A term with its type."""
        if term not in scope.known:
            view = self._value(term, scope)
            scope.known[term] = TypedValue(view, type_of(term, scope.types))
        return scope.known[term]

    def _value(self, term: n.Term, scope: TranslationScope) -> View:
        match term:
            case n.Param():
                return scope.env[term]
            case n.Literal(value, dtype):
                return const(value, dtype)
            case n.Apply(f, args):
                values = [self.value(a, scope) for a in args]
                if isinstance(f, n.Lambda):
                    values = [TypedValue(self.named(v), v.type) for v in values]
                return self.call(f, scope, *values).view
            case n.Tuple(items):
                return tuple(self.value(i, scope).view for i in items)
            case n.Fill(value, length):
                filled = self.value(value, scope).view
                reads = Reads.MEMORY if in_memory(filled) else Reads.EXPRESSION
                return Array(number(length), lambda i: filled, reads=reads)
            case n.Iota(length):
                return Array(number(length), lambda i: i, reads=Reads.MEMORY)
        raise TypeError(type(term).__name__)

    def call(
        self,
        f: n.Fun,
        scope: TranslationScope,
        *args: TypedValue,
    ) -> TypedValue:
        """`f` applied; one tuple may stand for several arguments."""
        types = tuple(a.type for a in args)
        items = unpacked(f, types)
        if items is not types:
            whole = args[0].view
            args = tuple(TypedValue(whole[k], t) for k, t in enumerate(items))
        use = PatternUse(self, f, scope, args, result(f, items, scope.types))
        return TypedValue(self._view(use), use.type)

    def _view(self, use: PatternUse) -> View:
        kind = type(use.f)
        unplaced = isinstance(use.x, ProducedValue) and use.x.made is None
        if unplaced and invertible(use.f):
            return self._moved(use)
        if kind in LAYOUT and kind is not n.Concat:
            return LAYOUT[kind](use.f, *(a.view for a in use.args))
        return self.patterns[kind](use)

    def _moved(self, use: PatternUse) -> View:
        """A pattern that only moves data: the destination moves instead of the value."""
        value, t = use.args[0]

        def types(g: n.Fun, a: Type) -> Type:
            return result(g, (a,), use.scope.types)

        def write(to: View) -> None:
            value.write(inverse_of_all(use.f, types, t, to))

        moved = ProducedValue(use.type, write, value.frame, self.code, value.space)
        moved.usual = value.usual
        if value.lazy is not None:
            moved.lazy = self.call(use.f, use.scope, TypedValue(value.lazy, t)).view
        return moved

    def produced(self, t: Type, write: Callable[[View], None]) -> ProducedValue:
        """A value made in the block being written."""
        return ProducedValue(t, write, self.code.frames[-1], self.code)

    def named(self, value: TypedValue) -> View:
        """In memory, unless it only moves data that is in memory already."""
        view, t = value
        if isinstance(view, ProducedValue):
            return view.place()
        if isinstance(t, Scalar) or in_memory(view):
            return view
        return self.produced(t, lambda to: self.code.into(value, to)).place()

    def guarded(self, value: TypedValue) -> View:
        """A view that may be read under a condition: no statement is needed for it there."""
        view = value.view
        if isinstance(view, Array | ProducedValue) and view.reads is Reads.STATEMENTS:
            return self.named(value)
        return view


@dataclass(frozen=True, eq=False, slots=True)
class PatternUse:
    """A pattern where it is applied: to `args`, with a result of `type`."""

    translator: Translator
    f: Any
    scope: TranslationScope
    args: tuple[TypedValue, ...]
    type: Type

    @property
    def code(self) -> KernelWriter:
        """What is being written."""
        return self.translator.code

    @property
    def x(self) -> View:
        """The first argument."""
        if self.args:
            return self.args[0].view
        return None

    @property
    def item(self) -> Type:
        """The type of the result's elements."""
        assert isinstance(self.type, ArrayType)
        return self.type.item

    @property
    def length(self) -> int:
        """The length of the result."""
        assert isinstance(self.type, ArrayType)
        return number(self.type.length)

    def call(self, f: n.Fun, *args: TypedValue) -> TypedValue:
        """A function applied in the same scope."""
        return self.translator.call(f, self.scope, *args)

    def body(self, *views: View) -> TypedValue:
        """The pattern's own function, applied to views of the types that it is given."""
        types = self.body_types()
        args = (TypedValue(v, t) for v, t in zip(views, types, strict=True))
        return self.call(self.f.f, *args)

    def body_types(self) -> tuple[Type, ...]:
        """The types of the arguments of the pattern's own function."""
        types = tuple(a.type for a in self.args)
        return arguments_of_body(self.f, types, self.scope.types)

    def term(self, term: n.Term) -> TypedValue:
        """A term inside the pattern: evaluated again in the block where the pattern runs."""
        return self.translator.value(
            term, TranslationScope(self.scope.env, self.scope.types)
        )

    def produced(self, write: Callable[[View], None]) -> ProducedValue:
        """The result, as what `write` writes."""
        return self.translator.produced(self.type, write)


def in_memory(view: View) -> bool:
    """Whether every leaf is an element of memory, a constant or an index."""
    if isinstance(view, tuple):
        return all(map(in_memory, view))
    if isinstance(view, Array):
        return view.reads is Reads.MEMORY
    if not isinstance(view, Expr):
        return False
    if isinstance(view, Load | Const):
        return True
    return not any(isinstance(x, Load) for x in postorder(view))
