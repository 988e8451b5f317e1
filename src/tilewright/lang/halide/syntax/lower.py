"""A pipeline as Computations, or as the Kernel in which each definition is its own nest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.compute.nodes import CC, PW, Computation, Dim, Output, sizes_of
from tilewright.expr import nodes
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Expr,
    Extent,
    Load,
    Var,
    as_expr,
    const,
)
from tilewright.ir.node import Node, postorder, transform
from tilewright.lang.halide.syntax import memory
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.image import Symbol, last_coordinate
from tilewright.lang.halide.syntax.pipeline import Pipeline
from tilewright.lang.halide.syntax.strict import unmarked
from tilewright.lang.halide.syntax.tracing import located, traced
from tilewright.loops.nodes import (
    Alloc,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
    for_sizes,
    loop,
)


@dataclass(frozen=True, eq=False, slots=True)
class LoweredStage:
    """One definition as a nest. loops: from the user's name of a coordinate to its loop's name."""

    func: Func
    definition: Definition
    loops: dict[str, str]
    nest: Stmt


@dataclass(frozen=True, eq=False, slots=True)
class LoweredPipeline:
    """A pipeline as a kernel. stages: of each Func, the pure one first; buffers: of each Func."""

    kernel: Kernel
    stages: dict[Func, tuple[LoweredStage, ...]]
    buffers: dict[Any, tuple[Buffer, ...]]


_Stored = tuple[Buffer, tuple[Expr, ...], Expr]  # a value, where it is stored


@dataclass(frozen=True, eq=False, slots=True)
class _Coordinate:
    """A loop of a definition: the user's variable is `var + min`."""

    name: str
    user: Expr
    var: Var
    min: Extent
    extent: Extent
    combine: str


@dataclass(slots=True)
class _Scope:
    """The buffers of a pipeline, and what its expressions become in them."""

    pipeline: Pipeline
    buffers: dict[Any, tuple[Buffer, ...]] = field(default_factory=dict)
    inlined: Collection[Func] = ()

    def __post_init__(self) -> None:
        for owner, box in self.pipeline.boxes.items():
            extents = tuple(extent for _, extent in box)
            strides = self.strides(owner)
            memory.check(strides, extents, self.pipeline.names[owner])
            shape = tuple(extents[n] for n in memory.order(len(box), strides))
            name = self.pipeline.names[owner]
            symbols = owner.symbols if isinstance(owner, Func) else (owner.symbol,)
            if len(symbols) == 1:
                names = [name]
            else:
                names = [f"{name}.{n}" for n in range(len(symbols))]
            self.buffers[owner] = tuple(
                Buffer(n, shape, s.dtype) for n, s in zip(names, symbols, strict=True)
            )

    def real(self, symbol: Symbol) -> Buffer:
        """The buffer of a symbol."""
        owner = symbol.owner
        at = owner.symbols.index(symbol) if isinstance(owner, Func) else 0
        return self.buffers[owner][at]

    def place(self, owner: Any, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """Coordinates of a Func or image as an index of its buffer."""
        box = self.pipeline.boxes[owner]
        place = [
            to_expr(affine(i) - affine(as_expr(low, INDEX)))
            for i, (low, _) in zip(index, box, strict=True)
        ]
        axes = memory.order(len(box), self.strides(owner))
        return tuple(place[n] for n in axes)

    def strides(self, owner: Any) -> Mapping[int, int]:
        """The strides that are promised of an image or output."""
        if isinstance(owner, Func) and owner not in self.pipeline.outputs:
            return {}
        found: Mapping[int, int] = owner.strides
        return found

    def rewritten(self, root: Expr, env: dict[Node, Expr]) -> Expr:
        """An expression over loops and buffers."""

        def step(node: Node) -> Node:
            if isinstance(node, Var):
                found = env.get(node)
                if found is None:
                    found = last_coordinate(node)
                return node if found is None else found
            if isinstance(node, Load) and isinstance(node.buffer, Symbol):
                symbol = node.buffer
                load = Load(self.real(symbol), self.place(symbol.owner, node.index))
                if "Load" in symbol.owner.traced and symbol.owner not in self.inlined:
                    return traced("Load", _label(symbol), load, node.index[::-1])
                return load
            return unmarked(node)

        result: Expr = transform(root, step)
        if result.dtype is INDEX:
            return to_expr(affine(result))
        return result


def _coordinates(
    f: Func, definition: Definition, pipeline: Pipeline, prefix: str
) -> list[_Coordinate]:
    """Outermost first: the pure variables as in NumPy, then those of the RDom, its first one
    innermost."""
    found: list[_Coordinate] = []

    def add(
        name: str,
        user: Expr,
        low: Extent,
        extent: Extent,
        combine: str,
    ) -> None:
        var = Var(f"{prefix}.{name}", INDEX)
        found.append(_Coordinate(name, user, var, low, extent, combine))

    for arg, v, (low, extent) in zip(
        definition.args, reversed(f.args), pipeline.boxes[f]
    ):
        if arg is v.node:
            add(v.name(), arg, low, extent, CC)
    if definition.domain is not None:
        for r in reversed(definition.domain.vars):
            add(r.name(), r.node, r.min, r.extent, PW)
    return found


def _stages(f: Func, scope: _Scope, separate: bool) -> tuple[LoweredStage, ...]:
    if separate and len(f.symbols) > 1:
        return tuple(_stage(f, 0, scope, only) for only in range(len(f.symbols)))
    return tuple(_stage(f, n, scope) for n in range(len(f.definitions)))


def _stage(
    f: Func,
    n: int,
    scope: _Scope,
    only: int | None = None,
) -> LoweredStage:
    """Definition n of `f` as a nest; loops `<f>.x`, of updates `<f>.update.x`, `<f>.update1.x`."""
    definition = f.definitions[n]
    name = scope.pipeline.names[f]
    if only is not None:
        prefix = f"{name}.{only}"
    elif n == 0:
        prefix = name
    else:
        number = "" if n == 1 else n - 1
        prefix = f"{name}.update{number}"
    coordinates = _coordinates(f, definition, scope.pipeline, prefix)
    env: dict[Node, Expr] = {c.user: _shifted(c) for c in coordinates}
    buffers = scope.buffers[f]
    if only is not None:
        buffers = (buffers[only],)
    stores: list[_Stored] = []
    for args, parts in definition.stores:
        point = [scope.rewritten(a, env) for a in args]
        values = tuple(scope.rewritten(v, env) for v in parts)
        if only is not None:
            values = (values[only],)
        place = scope.place(f, point)
        if "Store" in f.traced and f not in scope.inlined:
            stored = (buffers, place, values)
            values = _traced(f, definition, stored, point[::-1])
        if f.traced and f not in scope.inlined:
            values = tuple(located(v, point[::-1]) for v in values)
        stores += ((b, place, v) for b, v in zip(buffers, values, strict=True))
    body: Stmt
    if definition.reducer is not None and "Store" not in f.traced:
        places = tuple(place for _, place, _ in stores)
        parts = tuple(value for _, _, value in stores)
        body = Update(buffers, places, parts, definition.reducer)
    else:
        _check_places(f, n, stores)
        body = _stored(stores, prefix)
    if definition.domain is not None:
        for condition in reversed(definition.domain.conditions):
            body = If(scope.rewritten(condition.node, env), body, None)
    for c in reversed(coordinates):
        body = loop(c.var, c.extent, body)
    return LoweredStage(f, definition, {c.name: c.var.name for c in coordinates}, body)


def _label(symbol: Symbol) -> str:
    """A value as Halide's traces call it: f.0, and so on for the values of a Tuple."""
    owner = symbol.owner
    at = owner.symbols.index(symbol) if isinstance(owner, Func) else 0
    return f"{owner.name()}.{at}"


def _traced(
    f: Func,
    definition: Definition,
    stored: tuple[Sequence[Buffer], tuple[Expr, ...], tuple[Expr, ...]],
    point: Sequence[Expr],
) -> tuple[Expr, ...]:
    """The stored values as text; for a reduction, combined with the previous ones."""
    buffers, place, values = stored
    if definition.reducer is not None:
        old = tuple(Load(b, place) for b in buffers)
        values = definition.reducer.combine(old, values)
    pairs = zip(f.symbols, values, strict=True)
    return tuple(traced("Store", _label(s), v, point) for s, v in pairs)


def _shifted(c: _Coordinate) -> Expr:
    if c.min == 0:
        return c.var
    return nodes.Add(c.var, as_expr(c.min, INDEX))


def _check_places(f: Func, n: int, stores: Sequence[_Stored]) -> None:
    """Values are stored one by one, all at the place that it was before the first."""
    places = [e for _, place, _ in stores for e in place]
    if len(stores) > 1 and _read(places) & {b for b, _, _ in stores}:
        raise UnsupportedError(
            "an update of several values whose place they decide",
            where=f"update {n - 1} of Func {f.name()}",
            hint="one Func per value",
        )


def _read(roots: Sequence[Expr]) -> set[Buffer]:
    return {x.buffer for e in roots for x in postorder(e) if isinstance(x, Load)}


def _stored(stores: Sequence[_Stored], prefix: str) -> Stmt:
    """All values are computed before the first is stored, where one reads what another one is."""
    before = (({b for b, _, _ in stores[:n]}, v) for n, (_, _, v) in enumerate(stores))
    if not any(_read([v]) & written for written, v in before):
        return block(*(Store(b, place, v) for b, place, v in stores))
    at = (const(0),)
    parts = [
        Buffer(f"{prefix}.{n}", (1,), b.dtype, "register")
        for n, (b, _, _) in enumerate(stores)
    ]
    pairs = list(zip(parts, stores, strict=True))
    first = [Store(part, at, v) for part, (_, _, v) in pairs]
    then = [Store(b, place, Load(part, at)) for part, (b, place, _) in pairs]
    body = block(*first, *then)
    for part in reversed(parts):
        body = Alloc(part, body)
    return body


def kernel(
    pipeline: Pipeline, name: str, separate: Collection[Func] = ()
) -> LoweredPipeline:
    """Each definition as a nest, producers first; parameters: the images, then the outputs.

    Every Func except the outputs is allocated around its first nest and everything after it. For
    Funcs in `separate`, which have one definition and will be inlined, each value has a separate
    nest.
    """
    scope = _Scope(pipeline, inlined=separate)
    stages = {f: _stages(f, scope, f in separate) for f in pipeline.funcs}
    body = block()
    for f in reversed(pipeline.funcs):
        body = block(*(s.nest for s in stages[f]), body)
        if f not in pipeline.outputs:
            for buffer in reversed(scope.buffers[f]):
                body = Alloc(buffer, body)
    params, outputs = _interface(pipeline, scope)
    every = [*params, *(b for f in pipeline.funcs for b in scope.buffers[f])]
    body = for_sizes(sizes_of(e for b in every for e in b.extents), body)
    return LoweredPipeline(Kernel(name, params, outputs, body), stages, scope.buffers)


def _interface(
    pipeline: Pipeline, scope: _Scope
) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    images = tuple(b for i in pipeline.images for b in scope.buffers[i])
    outputs = tuple(b for f in pipeline.outputs for b in scope.buffers[f])
    return images + outputs, outputs


def computations(pipeline: Pipeline) -> tuple[list[Computation], tuple[Buffer, ...]]:
    """One Computation per Func, producers first, and the parameters: images, then outputs.

    A reduction is a pure definition by the neutral element and one update over all of its Vars.
    Raises UnsupportedError for a Func that is not a homomorphism: `kernel` has a nest for it.
    """
    scope = _Scope(pipeline)
    found = [_computation(f, scope) for f in pipeline.funcs]
    return found, _interface(pipeline, scope)[0]


def _computation(f: Func, scope: _Scope) -> Computation:
    definition = f.definitions[-1]
    if len(f.definitions) > 1:
        _check_reduction(f)
    coordinates = _coordinates(f, definition, scope.pipeline, scope.pipeline.names[f])
    dims = tuple(Dim(Var(c.name, INDEX), c.extent, c.combine) for c in coordinates)
    env: dict[Node, Expr] = {}
    for c, d in zip(coordinates, dims, strict=True):
        env[c.user] = d.var
        if c.min != 0:
            env[c.user] = nodes.Add(d.var, as_expr(c.min, INDEX))
    place = scope.place(f, [scope.rewritten(a, env) for a in definition.args])
    values = [scope.rewritten(v, env) for v in definition.values]
    if definition.domain is not None and definition.reducer is not None:
        for condition in definition.domain.conditions:
            test = scope.rewritten(condition.node, env)
            pairs = zip(values, definition.reducer.identity, strict=True)
            values = [nodes.Select(test, v, neutral) for v, neutral in pairs]
    outputs = zip(scope.buffers[f], values, strict=True)
    return Computation(
        scope.pipeline.names[f],
        dims,
        tuple(Output(b, place, v) for b, v in outputs),
        definition.reducer,
    )


def _check_reduction(f: Func) -> None:
    first = f.definitions[0]
    last = f.definitions[-1]
    updates = len(f.definitions) - 1
    if updates != 1:
        reason = f"it has {updates} updates"
    elif last.reducer is None:
        reason = "its update is not a step of an associative operator"
    elif last.args != first.args:
        reason = "its update writes other places than its pure definition"
    elif first.values != last.reducer.identity:
        reason = "it does not start with the neutral element"
    else:
        return
    raise UnsupportedError(
        f"{reason}, so it is not a Computation",
        where=f"Func {f.name()}",
        hint="its kernel has a nest of the loop IR for it",
    )
